"""`MapDataset` and `IterDataset`."""

import dataclasses
import gc
import json
import multiprocessing
import os
import pathlib
import pickle
import threading
import time

import grain
import numpy
import pytest
from conftest import ROOT
from test_processes import linux

import prep
from prep import IterDataset, MapDataset, transforms


def double(element):
    return 2 * element


def is_even(element):
    return element % 2 == 0


def shifted(element, rng):
    return element + int(rng.integers(1000))


def listed(element):
    return [int(part) for part in numpy.asarray(element).ravel()]


def test_elements_come_out_as_they_went_in():
    elements = [
        1, 2**70, True, None, 1.5, 1j, "text", b"bytes", (1, [2, "x"]), [], {}, {"a": 1, "b": {"c": "d", "e": None}}, {1: 2}, {"a/b": 3},
        {"": 4}, numpy.float32(3), object,
    ]  # fmt: skip
    got = list(MapDataset.source(elements).map(lambda element: element).shuffle(0, order="source"))
    assert got == elements and [type(own) for own in got] == [type(own) for own in elements]
    array = numpy.arange(1000)
    (dict_of_it,) = MapDataset.source([{"x": array}]).map(lambda element: element)
    assert dict_of_it["x"] is array, "no copy"


def test_batches_are_those_of_grain():
    elements = [{"a": number, "b": (number, str(number)), "c": {"d": numpy.full((2, 3), number)}, "e": None} for number in range(7)]
    for size, drop in ((3, False), (3, True), (7, False)):
        ours = list(MapDataset.source(elements).batch(size, drop_remainder=drop))
        theirs = list(grain.MapDataset.source(elements).batch(size, drop_remainder=drop))
        assert len(ours) == len(theirs)
        for own, other in zip(ours, theirs):
            numpy.testing.assert_equal(own, other)
            assert own["c"]["d"].dtype == other["c"]["d"].dtype
    sums = [MapDataset.range(6).batch(3, batch_fn=sum), grain.MapDataset.range(6).batch(3, batch_fn=sum)]
    assert list(sums[0]) == list(sums[1]) == [3, 12]


def test_pipelines_give_what_grain_gives():
    def pipeline(kind, **order):
        dataset = kind.range(1, 50, 2).seed(11).shuffle(**order).map(double)
        return dataset[3:20].repeat(2).map(lambda element: (element, -element)).batch(4)

    ours, theirs = pipeline(MapDataset, order="grain"), pipeline(grain.MapDataset)
    assert len(ours) == len(theirs)
    numpy.testing.assert_equal([*map(list, ours)], [*map(list, theirs)])
    ours = MapDataset.concatenate([MapDataset.range(3), MapDataset.range(5, 8)]).filter(is_even)
    theirs = grain.MapDataset.concatenate([grain.MapDataset.range(3), grain.MapDataset.range(5, 8)]).filter(is_even)
    assert list(ours) == list(theirs) and [ours[number] for number in range(8)] == [theirs[number] for number in range(8)]


@dataclasses.dataclass
class Plus(grain.transforms.Map):
    number: int

    def map(self, element):
        return element + self.number


class Noise(grain.transforms.RandomMap):
    def random_map(self, element, rng):
        return element + int(rng.integers(5))


class Even(grain.transforms.Filter):
    def filter(self, element):
        return element % 2 == 0


class Twice(grain.experimental.FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, element):
        return [element, element]


def test_transforms_of_grain_are_taken():
    from prep import grain as own

    class Minus(own.MapTransform):
        def map(self, element):
            return element - 1

    plain = [Plus(3), Minus(), Even(), Twice(), grain.transforms.Batch(2, drop_remainder=True)]
    streams = {"streams": 1}
    ours = MapDataset.range(9).to_iter_dataset(**streams).apply(plain)
    assert [batch.tolist() for batch in ours] == [[2, 2], [4, 4], [6, 6], [8, 8], [10, 10]]
    assert "Plus(number=3)" in "".join(ours.stages)
    theirs = grain.MapDataset.range(9).map(Plus(3)).filter(Even()).to_iter_dataset().batch(2)
    same = MapDataset.range(9).map(Plus(3)).filter(Even()).to_iter_dataset(grain.ReadOptions(num_threads=2)).batch(2)
    assert [batch.tolist() for batch in same] == [batch.tolist() for batch in theirs]
    noisy = MapDataset.range(9).seed(3).apply([Noise(), own.Batch(3)])
    assert [batch.tolist() for batch in noisy] == [batch.tolist() for batch in noisy]
    with pytest.raises(prep.errors.InvalidError, match="`random_map` needs a seed"):
        MapDataset.range(9).apply(Noise())
    with pytest.raises(TypeError, match="no function"):
        MapDataset.range(9).map(3)
    processes = same.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    assert [batch.tolist() for batch in processes] == [batch.tolist() for batch in theirs]


def test_maps_of_streams_are_called_by_the_chunk():
    calls = []

    class Table(prep._pipeline._Table):
        def call(self, function, elements, keys):
            calls.append(len(elements))
            return super().call(function, elements, keys)

    stream = MapDataset.range(400).to_iter_dataset(streams=2).map(double).filter(is_even).map(double)
    table = Table()
    values = stream._make(table).load({"num_threads": 0}, [])
    assert sum(1 for _ in iter(values.next, None)) == 400
    assert sum(calls) == 3 * 400 and len(calls) < 120
    assert list(stream) == [4 * number for number in range(400)]
    # On what a stage of streams gives they stay where they are.
    assert list(MapDataset.range(4).to_iter_dataset(streams=1).flat_map(lambda n: [n, n]).map(double)) == [0, 0, 2, 2, 4, 4, 6, 6]


def test_sources_of_grain_are_read_natively():
    source = prep.grain.DataSource("cifar10", split="test")
    native, listed = MapDataset.source(source), MapDataset.source([source[3]])
    numpy.testing.assert_equal(native[3], listed[0])
    assert native.element_spec["image"] == listed.element_spec["image"]
    records = MapDataset.source(prep.grain.DataSource("cifar10", split="test", decode=False))
    assert records[3] == source.dataset.record(3)
    theirs = grain.MapDataset.source(source).shuffle(seed=7).map(lambda element: element["label"]).batch(7)
    ours = native.shuffle(seed=7, order="grain").map(lambda element: element["label"]).batch(7)
    assert [batch.tolist() for batch in ours] == [batch.tolist() for batch in theirs]


def test_random_functions_have_the_generator_of_the_position():
    # ORDER.md, section 9: two words of the stage's stream are the key.
    for row in json.loads((ROOT / "tests/golden/order/vectors.json").read_text())["random"]:
        words = [int(word, 16) for word in row["words"][:2]]
        dataset = MapDataset.range(7).random_map(key_of, seed=row["seed"], name=row["stage"] or None)
        if row["stage"] and row["position"] < 2**62:
            assert dataset[row["position"]] == words
    drawn = MapDataset.range(1).repeat().random_map(lambda _, rng: int(rng.integers(2**32)), seed=42, name="flip")
    assert drawn[1000] == 2899165748, "the vector in ORDER.md"
    each = [list(MapDataset.range(50).random_map(key_of, seed=1).options(num_threads=threads)) for threads in (0, 2)]
    assert each[0] == each[1] and len(set(map(tuple, each[0]))) == 50


def key_of(_, rng):
    return rng.bit_generator.state["state"]["key"].tolist()


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("threads", [None, 0, 3])
def test_the_stream_does_not_depend_on_workers_and_threads(workers, threads):
    def stream(**options):
        dataset = MapDataset.range(40).shuffle(5).map(double).random_map(shifted, seed=3).repeat(2)
        stream = dataset.filter(is_even).to_iter_dataset().map(double).batch(3)
        with stream.options(**options).iter() as iterator:
            return [*map(listed, iterator)]

    assert stream(workers=workers, num_threads=threads) == stream()


@pytest.mark.parametrize("make", [
    lambda: MapDataset.range(20).shuffle(1).map(double).batch(3),
    lambda: MapDataset.range(20).shuffle(1).random_map(shifted, seed=2),
    lambda: MapDataset.range(30).filter(is_even).to_iter_dataset(streams=4).flat_map(lambda n: [n] * (n % 3)).batch(2),
    lambda: MapDataset.range(30).to_iter_dataset().window_shuffle(7, seed=1),
])  # fmt: skip
def test_a_state_goes_on_where_it_was_saved(make):
    dataset = make()
    whole = [*map(listed, dataset)]
    for taken in range(len(whole) + 1):
        iterator = iter(dataset)
        assert [listed(next(iterator)) for _ in range(taken)] == whole[:taken]
        state = json.loads(json.dumps(iterator.get_state()))
        assert [*map(listed, make().iter(state))] == whole[taken:]
        iterator.set_state(state)
        assert [*map(listed, iterator)] == whole[taken:]
    with pytest.raises(prep.errors.StateError, match="stage"):
        MapDataset.range(7).iter(state)
    iterator = iter(dataset)
    first = listed(next(iterator))
    with pytest.raises(prep.errors.StateError, match="stage"):
        iterator.set_state(MapDataset.range(7).iter().get_state())
    assert [first, *map(listed, iterator)] == whole, "it goes on as if nothing had been asked"


def test_what_a_function_raises_is_raised_with_its_place():
    def broken(element):
        if element == 5:
            raise KeyError("five")
        return element

    for dataset in (MapDataset.range(9).map(broken), MapDataset.range(9).map(double).map(lambda n: n // 2).map(broken).batch(1)):
        for workers in (0, 2):
            with dataset.options(workers=workers).iter() as iterator:
                assert [listed(next(iterator)) for _ in range(5)] == [[number] for number in range(5)]
                with pytest.raises(KeyError, match="five") as raised:
                    next(iterator)
                notes = "".join(raised.value.__notes__)
                assert "broken" in notes and "position 5" in notes
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(MapDataset.range(3).map(lambda element: next(iter(()))))
    records = MapDataset.load("cifar10").map(lambda element: 1 / 0)
    with pytest.raises(ZeroDivisionError) as raised:
        next(iter(records))
    assert "cifar10" in "".join(raised.value.__notes__)


def test_native_transforms_work_on_what_functions_make():
    pictures = MapDataset.load("cifar10", split="test")
    native = pictures.map(transforms.Normalize("image", mean=(0.5,), std=(0.25,))).map(transforms.OneHot("label", 10))
    batch = next(iter(native.batch(4)))
    assert batch["image"].dtype == numpy.float32 and batch["label"].shape == (4, 10) and batch["image"].flags.writeable
    by_hand = (numpy.stack([pictures[index]["image"] for index in range(4)]) / numpy.float32(255) - 0.5) / 0.25
    numpy.testing.assert_allclose(batch["image"], by_hand, rtol=1e-6)
    made = MapDataset.range(20).map(lambda n: {"x": numpy.full((4, 4, 1), n, numpy.uint8), "label": n % 3})
    made = made.map(transforms.Resize("x", (2, 2))).map(transforms.OneHot("label", 3)).random_map(transforms.Flip("x"), seed=1)
    assert made[7]["x"].shape == (2, 2, 1) and made[7]["label"].tolist() == [0, 1, 0]
    with pytest.raises(prep.errors.InvalidError, match="random_map"):
        made.map(transforms.Flip("x"))
    with pytest.raises(prep.errors.InvalidError, match="imag"):
        pictures.map(transforms.Resize("imag", (2, 2)))


def test_iterators_and_datasets_pickle():
    dataset = MapDataset.load("cifar10").shuffle(3).map(transforms.Select(["label"])).batch(8)
    iterator = iter(dataset)
    next(iterator)
    other = pickle.loads(pickle.dumps(iterator))
    numpy.testing.assert_equal(list(iterator), list(other))
    again = pickle.loads(pickle.dumps(MapDataset.range(5).map(double)))
    assert list(again) == [0, 2, 4, 6, 8]


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("source", ["range", "dataset", "filter"])
def test_a_child_of_a_fork_goes_on(source):
    dataset = {
        "range": MapDataset.range(40),
        "dataset": MapDataset.load("cifar10", split="test[:40]").map(lambda element: int(element["label"])),
        "filter": MapDataset.range(80).filter(is_even).to_iter_dataset(),
    }[source]
    iterator = iter(dataset.map(double))
    before = [next(iterator) for _ in range(5)]
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(list(iterator)))
    child.start()
    rest = list(iterator)
    assert queue.get() == rest and len(before + rest) == 40
    child.join(10)
    assert child.exitcode == 0


def threads():
    names = [pathlib.Path("/proc/self/task", task, "comm").read_text() for task in os.listdir("/proc/self/task")]
    return [name for name in names if name.startswith("prep-")]


@linux
def test_threads_end_with_the_iterator():
    def slow(element):
        time.sleep(0.02)
        return element

    for end in ("close", "del", "with"):
        iterator = iter(MapDataset.range(100000).map(slow).options(num_threads=2))
        next(iterator)
        if end == "close":
            iterator.close()
            with pytest.raises(prep.errors.ClosedError):
                next(iterator)
        elif end == "with":
            with iterator:
                pass
        del iterator
        gc.collect()
        assert not threads()


@pytest.mark.parametrize("function", ["time.sleep(0.01) or element", "spin(element)", "element"])
def test_a_program_ends_with_an_iterator_at_work(run, function):
    began = time.monotonic()
    run(
        f"""
import time, prep
def spin(element):
    while element > 2:
        pass
    return element
def work(element):
    return {function}
iterator = iter(prep.MapDataset.range(10**9).map(work).options(num_threads=2))
print(next(iterator))
"""
    )
    assert time.monotonic() - began < 20


def test_hosts_share_and_states_fit_another_number_of_them():
    dataset = MapDataset.range(48).shuffle(2).map(double).repeat(2)
    whole = [*map(listed, dataset.batch(8))]
    hosts = [iter(dataset.batch(4).shard(host, 2)) for host in range(2)]
    first = [listed(next(host)) for host in hosts]
    assert sorted(first[0] + first[1]) == sorted(whole[0])
    state = hosts[0].get_state()
    assert [*map(listed, dataset.batch(8).iter(state))] == whole[1:]


def test_where_the_time_of_a_pipeline_goes():
    iterator = iter(MapDataset.load("cifar10").map(lambda element: {"x": element["image"] * 2}).batch(10))
    assert len(list(iterator)) == 30
    metrics = iterator.metrics()
    assert metrics["steps"] == 30 and metrics["bytes"] == 300 * 32 * 32 * 3 and metrics["advice"]
    named = {row["stage"].split()[0]: row["elements"] for row in metrics["stages"]}
    assert named == {"source": 300, "map": 300, "batch": 30}


def test_damaged_records_are_left_out_and_named(damaged_catalog):
    dataset = MapDataset.load("cifar10", catalog=damaged_catalog).map(lambda element: int(element["label"]))
    with pytest.raises(prep.errors.DamagedError, match="array_record"):
        list(dataset)
    iterator = dataset.options(on_error="skip").iter()
    named = [len(iterator.damaged()) for _ in iterator]
    named.append(len(iterator.damaged()))
    assert len(named) - 1 + sum(named) == 300 and sum(named) == iterator.metrics()["skipped"] > 0


def test_elements_without_batches_are_made_several_at_a_time():
    calls = []

    class Table(prep._pipeline._Table):
        def call(self, function, elements, keys):
            calls.append(len(elements))
            return super().call(function, elements, keys)

    def broken(element):
        if element == 700:
            raise KeyError(element)
        return element

    dataset = MapDataset.range(1000).map(broken)
    table = Table()
    stream = dataset._make(table).load({"num_threads": 1}, [])
    assert [stream.next() for _ in range(700)] == [(number,) for number in range(700)]
    for _ in range(2):
        with pytest.raises(KeyError):
            stream.next()
    assert len(calls) < 350, "chunks grow"
    stream.skip(1)
    state = stream.state()
    assert stream.next() == (701,)
    assert dataset.iter(state).skip(3) is None
    again = dataset.iter(state)
    again.skip(3)
    assert list(again) == [*range(704, 1000)]
    # One by one where a number is asked for.
    calls.clear()
    table = Table()
    stream = dataset._make(table).load({"num_threads": 1, "prefetch": 2}, [])
    assert [stream.next() for _ in range(50)] == [(number,) for number in range(50)] and set(calls) == {1}


def test_batches_of_tuples_are_taken_apart():
    elements = [(numpy.full(2, number), {"label": number, "name": str(number), "none": None}) for number in range(7)]
    batches = MapDataset.source(elements).batch(3).to_iter_dataset(streams=1).rebatch(4)
    theirs = grain.experimental.RebatchIterDataset(grain.MapDataset.source(elements).batch(3).to_iter_dataset(), 4)
    numpy.testing.assert_equal(list(batches), list(theirs))
    with pytest.raises(prep.errors.InvalidError, match="take a batch apart"):
        list(MapDataset.source([(numpy.ones(2), numpy.ones(3))]).to_iter_dataset().unbatch())


def test_sources_of_ones_own():
    class Squares:
        asked = []

        def __len__(self):
            return 20

        def __getitem__(self, index):
            if index == 7:
                raise IndexError("seven")
            return index * index

        def __getitems__(self, indices):
            self.asked.append(len(indices))
            return [self[index] for index in indices]

    squares = MapDataset.source(Squares())
    assert len(squares) == 20 and squares[3] == squares[23] == 9 and squares[-1] == 361
    assert listed(next(iter(squares.batch(6)))) == [0, 1, 4, 9, 16, 25] and max(Squares.asked) == 6
    iterator = iter(squares)
    assert [next(iterator) for _ in range(7)] == [number**2 for number in range(7)]
    with pytest.raises(IndexError, match="seven"):
        next(iterator)
    iterator.skip(1)
    assert next(iterator) == 64
    assert list(MapDataset.source(MapDataset.range(4).map(double)).map(double)) == [0, 4, 8, 12]
    with pytest.raises(TypeError, match="len"):
        MapDataset.source(iter([1]))
    with pytest.raises(prep.errors.InvalidError, match="batch size"):
        squares.batch(0)
    with pytest.raises(prep.errors.UnsupportedError, match="step"):
        squares[::-1]
    with pytest.raises(prep.errors.OutOfRangeError):
        MapDataset.range(0)[0]
    # One row for two hosts.
    rest = [list(MapDataset.source([1, 2, 3]).batch(1).shard(host, 2))[-1] for host in range(2)]
    assert rest[0].tolist() == [3] and rest[1].shape == (0,)


def test_packing_of_elements_of_python():
    texts = MapDataset.source([{"tokens": numpy.arange(length, dtype=numpy.int32), "id": length} for length in (3, 4, 2)])
    rows = list(texts.to_iter_dataset(streams=1).pack({"tokens": 6}, num_packing_bins=2, meta_features=["id"]))
    assert [row["tokens"].tolist() for row in rows] == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 0]]
    assert [listed(row["id"]) for row in rows] == [[3, 2], [4]]
    with pytest.raises(prep.errors.InvalidError, match="`token`"):
        texts.to_iter_dataset().pack({"token": 6})


def test_mixtures_of_elements_of_python():
    datasets = [MapDataset.source(["a", "b"]), MapDataset.range(10)]
    assert list(MapDataset.mix(datasets, [1, 2])) == ["a", 0, 1, "b", 2, 3]
    streams = {"x": MapDataset.source(["a"] * 96).to_iter_dataset(), "y": MapDataset.range(192).to_iter_dataset()}
    mixed = list(IterDataset.mix(streams, {"x": 1, "y": 2}))
    assert mixed.count("a") == 96 and len(mixed) == 288


def test_arrays_may_be_written_to_and_kept():
    cached = MapDataset.load("cifar10", split="test").cache()
    first, second = cached[0]["image"], cached[0]["image"]
    first[:] = 0
    assert second.any() and cached[0]["image"].any()
    kept = [batch["image"] for batch in cached.batch(16)]
    assert all(array.flags.writeable for array in kept) and kept[0].any()


def test_functions_run_at_the_same_time_as_the_consumer_waits():
    barrier = threading.Barrier(2, timeout=20)

    def together(element):
        barrier.wait()
        return element

    assert list(MapDataset.range(4).map(together).batch(1).options(num_threads=2, prefetch=4)) is not None


def test_what_numpy_stacks_in_its_own_way_keeps_its_kind():
    dates = numpy.array(["2020-01-01", "2021-02-03"], "M8[D]")
    (batch,) = MapDataset.source(dates).batch(2)
    assert batch.dtype == dates.dtype and (batch == dates).all()
    (batch,) = MapDataset.source([{"x": numpy.timedelta64(5, "s")}] * 2).batch(2)
    assert batch["x"].tolist() == numpy.array([5, 5], "m8[s]").tolist()
    (batch,) = MapDataset.source([numpy.ma.masked_array([1, 2], [0, 1])] * 2).batch(2)
    assert batch.mask.tolist() == [[False, True]] * 2
    # Whatever is beside them.
    (batch,) = MapDataset.source([{"b": b"ab\0", "s": "t"}, {"b": b"c\0\0", "s": "u"}]).batch(2)
    assert batch["b"].tolist() == [b"ab\0", b"c\0\0"]


def test_a_dict_in_itself_is_an_object_like_others():
    own = {}
    own["own"] = own
    assert MapDataset.source([own])[0] is own


def test_a_stream_in_its_own_pipelines_cycle_is_collected():
    class Trainer:
        def __init__(self, workers):
            self.stream = iter(MapDataset.range(100).repeat().map(self.prepared).options(workers=workers, num_threads=2))

        def prepared(self, number):
            return number

    def counts():
        gc.collect()
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    next(Trainer(0).stream), next(Trainer(1).stream)
    before = counts()
    for workers in (0, 1):
        for _ in range(4):
            next(Trainer(workers).stream)
    assert counts() <= before


def test_a_stream_is_not_used_from_its_own_functions():
    stream = iter(MapDataset.range(3).map(lambda number: (stream.get_state(), number)).options(num_threads=0))
    with pytest.raises(prep.errors.StateError, match="in the middle of an element"):
        next(stream)


def test_a_host_without_rows_has_a_batch_of_none():
    rows = MapDataset.range(5).map(lambda number: {"a": numpy.full(2, number), "b": (number, b"x")})
    first, last = rows.batch(2).shard(1, 2)
    assert last["a"].shape == (0, 2) and last["a"].dtype == first["a"].dtype
    assert [part.shape for part in last["b"]] == [(0,), (0,)]


def test_generators_serve_as_flat_maps_in_workers_too():
    def parts(number):
        yield from range(number)

    stream = MapDataset.range(4).to_iter_dataset(streams=1).flat_map(parts)
    assert list(stream) == list(stream.options(workers=1)) == [0, 0, 1, 0, 1, 2]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda d: d.batch(1.5), TypeError, "`batch_size` is 1.5"),
        (lambda d: d.batch("3"), TypeError, "`batch_size` is '3'"),
        (lambda d: d.batch(-1), prep.errors.InvalidError, "`batch_size` is -1"),
        (lambda d: d.batch(2, stacking="x"), prep.errors.InvalidError, "`stacking` is 'x'"),
        (lambda d: d.shuffle(-1), prep.errors.InvalidError, "`seed` is -1"),
        (lambda d: d.repeat(-1), prep.errors.InvalidError, "`num_epochs` is -1"),
        (lambda d: d.shard("0", 2), TypeError, "`shard_index` is '0'"),
        (lambda d: d.options(workers=-1), prep.errors.InvalidError, "`workers` is -1"),
        (lambda d: d.options(start_method="x"), prep.errors.InvalidError, "`start_method` is 'x'"),
        (lambda d: MapDataset.mix([d, d.to_iter_dataset()]), prep.errors.InvalidError, "dataset 1 of `MapDataset.mix` is a IterDataset"),
        (lambda d: IterDataset.interleave([d], cycle_length=1), prep.errors.InvalidError, "give it `to_iter_dataset"),
        (lambda d: MapDataset.zip([d.shard(0, 2), d.shard(1, 2)]), prep.errors.InvalidError, "different shards"),
        (lambda d: MapDataset.source([1], columns=["a"]), prep.errors.InvalidError, "`columns` and `decode`"),
    ],
)
def test_what_cannot_be_meant_is_told_where_it_is_written(wrong, error, message):
    with pytest.raises(error, match=message):
        wrong(MapDataset.range(4))
