"""`prep.grain` beside the real Grain: the same batches, generators and states; and what its worker processes leave behind, which is nothing."""

import collections
import copy
import gc
import itertools
import json
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import conftest
import numpy as np
import pytest

import prep
import prep.grain as ours
from prep import errors
from prep._batch import make_batch
from prep.grain._shuffle import shuffled

theirs = pytest.importorskip("grain.python")

from absl import flags
from grain._src.python.dataset.transformations import batch as their_batch
from grain.experimental import FlatMapTransform as TheirFlatMap

if not flags.FLAGS.is_parsed():
    # Grain's worker processes ask for the flags of the main program.
    flags.FLAGS.mark_as_parsed()

LINUX = pathlib.Path("/proc/self/task").exists()
linux = pytest.mark.skipif(not LINUX, reason="looks into /proc")
SOAK = os.environ.get("PREP_SOAK") == "1"


class Transforms:
    """One set of transforms, written once for either package."""

    def __init__(self, package, flat_map):
        class Double(package.MapTransform):
            def map(self, element):
                return {"image": np.full((2, 3), element, np.float32), "label": int(element)}

        class Jitter(package.RandomMapTransform):
            def random_map(self, element, rng):
                return {**element, "image": element["image"] + rng.normal(size=(2, 3)), "draw": rng.integers(1 << 40)}

        class Odd(package.FilterTransform):
            def filter(self, element):
                return element["label"] % 3 != 1

        class Parts(flat_map):
            max_fan_out = 4

            def flat_map(self, element):
                return [{**element, "part": part} for part in range(element["label"] % 4)]

        def sums(elements):
            return {"labels": [element["label"] for element in elements]}

        def tagged(records):
            for record in records:
                yield package.Record(record.metadata, {**record.data, "at": record.metadata.index})

        double, jitter, odd, parts, batch = Double(), Jitter(), Odd(), Parts(), package.Batch
        self.chains = {
            "none": [],
            "map": [double],
            "random map, twice": [double, jitter, jitter],
            "filter": [double, odd],
            "batch": [double, batch(4)],
            "all, remainder dropped": [double, jitter, odd, batch(3, drop_remainder=True)],
            "random map of batches": [double, batch(4), package_random_batch(package)],
            "batch function": [double, batch(5, batch_fn=sums)],
            "batches of batches": [double, batch(2, drop_remainder=True), batch(2)],
            "operation": [double, tagged, batch(2)],
            "flat map": [double, parts],
            "flat map in batches": [double, jitter, parts, batch(3)],
            "flat maps of flat maps": [double, parts, parts, batch(2)],
        }


def package_random_batch(package):
    class Noise(package.RandomMapTransform):
        def random_map(self, element, rng):
            return {**element, "noise": rng.uniform()}

    return Noise()


OURS, THEIRS = Transforms(ours, ours.FlatMapTransform), Transforms(theirs, TheirFlatMap)
CHAINS = list(OURS.chains)


def loader(package, chain, length=23, *, shard=(0, 1, False), shuffle=True, num_epochs=1, seed=7, worker_count=0, threads=0, **options):
    shard_options = package.NoSharding() if shard[1] == 1 else package.ShardOptions(*shard)
    return package.DataLoader(
        data_source=list(range(100, 100 + length)),
        sampler=package.IndexSampler(length, shard_options, shuffle=shuffle, num_epochs=num_epochs, seed=seed),
        operations=(OURS if package is ours else THEIRS).chains[chain],
        worker_count=worker_count,
        read_options=package.ReadOptions(num_threads=threads, prefetch_buffer_size=10),
        **options,
    )


def both(*arguments, **options):
    return loader(ours, *arguments, **options), loader(theirs, *arguments, **options)


def take(iterable, count=60):
    return list(itertools.islice(iterable, count))


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for mine, their in zip(found, wanted):
        assert type(mine) is type(their) or isinstance(their, np.ndarray), (type(mine), type(their))
        if isinstance(their, dict):
            assert mine.keys() == their.keys()
            for key in their:
                np.testing.assert_array_equal(mine[key], their[key])
                assert np.asarray(mine[key]).dtype == np.asarray(their[key]).dtype
        else:
            np.testing.assert_array_equal(mine, their)


SHARDS = [(0, 1, False), (0, 2, False), (1, 2, True), (2, 3, False), (2, 3, True), (0, 4, True), (3, 4, False)]


def test_the_permutation_is_the_one_that_grain_printed():
    rows = json.loads((conftest.GOLDEN / "grain" / "index_shuffle.json").read_text())["rows"]
    compared = 0
    for row in rows:
        if row["rounds"] == 4:
            indices = np.arange(row["n"]) if row["indices"] is None else np.array(row["indices"])
            assert shuffled(indices, row["n"], row["seed"]).tolist() == row["values"], (row["n"], row["seed"])
            compared += len(indices)
    assert compared > 1000


@pytest.mark.parametrize("shard", SHARDS, ids=str)
def test_samplers_give_the_same_records_and_generators(shard):
    for length, shuffle, num_epochs, seed in itertools.product([4, 10, 97], [False, True], [None, 1, 3], [None, 0, 2**32 - 1]):
        if shuffle and seed is None:
            continue
        mine, their = (
            package.IndexSampler(length, package.ShardOptions(*shard), shuffle=shuffle, num_epochs=num_epochs, seed=seed) for package in (ours, theirs)
        )
        assert (len(mine), repr(mine)) == (len(their), repr(their))
        for index in {*range(0, min(len(their), 3 * length), 1 + length // 4), min(len(their), 10**6) - 1}:
            found, wanted = mine[index], their[index]
            assert (found.index, found.record_key) == (wanted.index, wanted.record_key)
            assert (found.rng is None) == (wanted.rng is None)
            if wanted.rng is not None:
                assert found.rng.bytes(40) == wanted.rng.bytes(40)
        for index in (-1, len(their)):
            with pytest.raises(IndexError):
                mine[index]


def test_sequential_samplers_give_the_same():
    for shard, seed in itertools.product(SHARDS, [None, 3, 2**70]):
        mine, their = (package.SequentialSampler(11, package.ShardOptions(*shard), seed) for package in (ours, theirs))
        assert (len(mine), repr(mine)) == (len(their), repr(their))
        for index in range(len(their)):
            assert (mine[index].index, mine[index].record_key) == (their[index].index, their[index].record_key)
            if seed is not None:
                assert mine[index].rng.bytes(9) == their[index].rng.bytes(9)


def test_a_generator_pickles_spawns_and_is_that_of_philox():
    mine, their = ours.IndexSampler(9, seed=2**32 - 1)[8].rng, np.random.Generator(np.random.Philox(key=2**32 + 7))
    np.testing.assert_equal(mine.bit_generator.state, their.bit_generator.state)
    assert pickle.loads(pickle.dumps(mine)).bytes(20) == mine.bytes(20)
    first, second = (child.bytes(8) for child in mine.spawn(2))
    assert first != second


def test_options_are_as_grains():
    for name in ("NoSharding", "ShardByJaxProcess", "ReadOptions", "MultiprocessingOptions"):
        assert repr(getattr(ours, name)()) == repr(getattr(theirs, name)())
    assert repr(ours.RangeDataSource(1, 9, 3)) == repr(theirs.RangeDataSource(1, 9, 3))
    assert list(ours.RangeDataSource(1, 9, 3)) == list(theirs.RangeDataSource(1, 9, 3))
    for package in (ours, theirs):
        for wrong in (
            lambda: package.ShardOptions(2, 2),
            lambda: package.ShardOptions(0, 0),
            lambda: package.ReadOptions(num_threads=-1),
            lambda: package.IndexSampler(0, package.NoSharding()),
            lambda: package.IndexSampler(1, package.NoSharding(), shuffle=True),
            lambda: package.IndexSampler(1, package.NoSharding(), seed=2**32),
            lambda: package.IndexSampler(1, package.NoSharding(), num_epochs=0),
            lambda: loader(package, "map", worker_count=-1),
            lambda: package.DataLoader(data_source=[1], sampler=[]),
            lambda: package.DataLoader(data_source=[1], sampler=package.SequentialSampler(1), operations=[package.Batch(0)]),
        ):
            with pytest.raises(ValueError):
                wrong()
        with pytest.raises(TypeError):
            package.IndexSampler(1, package.NoSharding(), shuffle=True, seed=1.5)


@pytest.mark.parametrize("shard", SHARDS, ids=str)
def test_streams_are_the_same_over_shards_and_epochs(shard):
    for length, shuffle, num_epochs in itertools.product([5, 23], [False, True], [None, 3]):
        if shard[1] > length:
            continue
        mine, their = both("batch", length, shard=shard, shuffle=shuffle, num_epochs=num_epochs)
        assert_same(take(mine, 30), take(their, 30))


@pytest.mark.parametrize("worker_count", [0, 1, 2, 3, 8])
def test_streams_are_the_same_with_worker_processes(worker_count, workers_here):
    """Ours are real processes."""
    for chain in CHAINS if worker_count in (0, 2) else ("all, remainder dropped", "flat map in batches"):
        mine, their = both(chain, shard=(1, 2, True), num_epochs=2, worker_count=worker_count)
        assert_same(list(mine), list(their))


def test_a_stream_is_the_same_beside_grains_real_processes():
    mine, their = both("all, remainder dropped", worker_count=2)
    iterator = iter(their)
    wanted = list(iterator)
    assert len(wanted) == 5
    assert_same(list(mine), wanted)


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("buffer", [1, 7, 500])
def test_threads_keep_the_order(threads, buffer):
    class Slow(list):
        def __getitem__(self, key):
            time.sleep(0.001 * (key % 3))
            return key

    sampler = ours.IndexSampler(60, ours.NoSharding(), shuffle=True, seed=1, num_epochs=1)
    options = ours.ReadOptions(num_threads=threads, prefetch_buffer_size=buffer)
    found = list(ours.DataLoader(data_source=Slow(range(60)), sampler=sampler, read_options=options))
    assert found == [sampler[index].record_key for index in range(60)]


def test_no_more_is_read_ahead_than_the_buffer_holds():
    reads = []

    class Source(list):
        def __getitem__(self, key):
            reads.append(key)
            return key

    options = ours.ReadOptions(num_threads=4, prefetch_buffer_size=20)
    iterator = iter(ours.DataLoader(data_source=Source(range(500)), sampler=ours.SequentialSampler(500), read_options=options))
    for given in range(1, 100):
        assert next(iterator) == given - 1
        assert len(reads) <= given + 20
    iterator.close()


@pytest.mark.parametrize("worker_count", [0, 1, 3])
@pytest.mark.parametrize("chain", ["map", "all, remainder dropped", "flat map in batches", "flat maps of flat maps"])
def test_states_are_the_same_text_and_cross_over_at_each_step(chain, worker_count, workers_here):
    mine, their = both(chain, shard=(1, 2, False), length=31, worker_count=worker_count)
    my_iterator, their_iterator = iter(mine), iter(their)
    wanted = list(their)
    for step in range(len(wanted) + 1):
        state = my_iterator.get_state()
        assert json.loads(state) == json.loads(their_iterator.get_state()), step
        if step % 3 == worker_count % 3:
            here, there = iter(mine), iter(their)
            here.set_state(their_iterator.get_state())
            there.set_state(state)
            assert_same(list(here), wanted[step:])
            assert_same(list(there), wanted[step:])
        if step < len(wanted):
            assert_same([next(my_iterator)], [next(their_iterator)])
    for iterator in (my_iterator, their_iterator):
        with pytest.raises(StopIteration):
            next(iterator)
    assert json.loads(my_iterator.get_state()) == json.loads(their_iterator.get_state())


@pytest.mark.parametrize("worker_count", [0, 2])
def test_an_iterator_goes_back_and_on_and_pickles(worker_count):
    mine = loader(ours, "batch", worker_count=worker_count, threads=3)
    iterator = iter(mine)
    first, state = take(iterator, 2), iterator.get_state()
    rest = list(iterator)
    iterator.set_state(state)
    assert_same(take(iterator, 1), rest[:1])
    plain = ours.DataLoader(
        data_source=range(30), sampler=ours.SequentialSampler(30), operations=[ours.Batch(4)], worker_count=worker_count
    )
    going = iter(plain)
    next(going)
    again = pickle.loads(pickle.dumps(going))
    assert len(pickle.dumps(going)) < 2000
    assert_same(list(again), list(going))
    for copied in (copy.copy(plain), copy.deepcopy(plain), pickle.loads(pickle.dumps(plain))):
        assert_same(list(copied), list(plain))
    assert len(first) == 2


def test_states_of_other_loaders_are_refused():
    state = iter(loader(ours, "map")).get_state()
    for other in (
        loader(ours, "map", seed=8),
        loader(ours, "map", worker_count=2),
        ours.DataLoader(data_source=range(23), sampler=loader(ours, "map")._sampler),
    ):
        with pytest.raises(errors.StateError, match="is of another loader: its (sampler|worker count|data source) is"):
            iter(other).set_state(state)
    changed = json.loads(state)
    changed["last_seen_indices"]["0"] = 1000
    with pytest.raises(IndexError, match="stands at record 1001 of a stream of 23"):
        iter(loader(ours, "map")).set_state(json.dumps(changed).encode())
    for text in (b"", b"\xff", b"[]", b"{}", json.dumps({**changed, "last_seen_indices": 3}).encode()):
        with pytest.raises(errors.StateError):
            iter(loader(ours, "map")).set_state(text)


class OwnSampler:
    """Without a length."""

    _shard_options = ours.NoSharding()

    def __getitem__(self, index):
        if index >= 5:
            raise IndexError
        return ours.RecordMetadata(index=index, record_key=4 - index, rng=None)


class Reversed(ours.IndexSampler):
    def __getitem__(self, index):
        metadata = super().__getitem__(index)
        metadata.record_key = 4 - metadata.record_key
        return metadata


def test_samplers_of_ones_own():
    for sampler in (OwnSampler(), Reversed(5, num_epochs=1)):
        assert list(ours.DataLoader(data_source="abcde", sampler=sampler)) == list("edcba")


def test_transforms_of_grain_itself_do_too():
    shard = theirs.ShardOptions(1, 2)
    mine = ours.DataLoader(
        data_source=list(range(23)), sampler=ours.SequentialSampler(23), operations=THEIRS.chains["flat map in batches"], shard_options=shard
    )
    their = theirs.DataLoader(
        data_source=list(range(23)),
        sampler=theirs.SequentialSampler(23, theirs.NoSharding()),
        operations=THEIRS.chains["map"] + THEIRS.chains["flat map in batches"][2:],
        shard_options=shard,
    )
    mine._operations = THEIRS.chains["map"] + THEIRS.chains["flat map in batches"][2:]
    assert_same(list(mine), list(their))


Point = collections.namedtuple("Point", "x y")

TREES = {
    "numbers": [1, 2, 3],
    "mixed numbers": [1, 2.5, True],
    "great numbers": [2**63, 1, 5],
    "numpy numbers": [np.int8(1), np.int8(2)],
    "mixed numpy numbers": [np.int8(1), np.float32(2)],
    "one": [{"a": np.arange(3)}],
    "text": [b"a", b"abc"],
    "text, unicode": ["a", "abc"],
    "objects": [np.array([b"a", None], object), np.array([1, 2], object)],
    "none": [{"a": None, "b": 1}, {"a": None, "b": 2}],
    "nested": [{"a": [1, (2, np.ones((2, 2)))], "b": {"c": Point(1, np.zeros(2))}}] * 3,
    "another order of keys": [{"a": 1, "b": 2}, {"b": 3, "a": 4}],
    "default dict": [collections.defaultdict(int, {"a": 1})] * 2,
    "ordered": [collections.OrderedDict(a=1, b=2)] * 2,
    "empty": [{}, {}],
    "no length": [np.zeros((0, 3)), np.zeros((0, 3))],
    "fortran": [np.asfortranarray(np.arange(6).reshape(2, 3))] * 2,
    "other dtypes": [np.arange(3, dtype=np.int32), np.arange(3, dtype=np.int64)],
}


@pytest.mark.parametrize("elements", TREES.values(), ids=TREES)
def test_batches_are_as_grain_makes_them(elements):
    import jax

    mine, wanted = make_batch(elements), their_batch.make_batch(elements)
    assert jax.tree_util.tree_structure(mine) == jax.tree_util.tree_structure(wanted)
    for found, leaf in zip(jax.tree_util.tree_leaves(mine), jax.tree_util.tree_leaves(wanted), strict=True):
        np.testing.assert_array_equal(found, leaf)
        assert (found.dtype, found.shape) == (leaf.dtype, leaf.shape)


def test_classes_that_jax_knows_are_looked_into():
    import dataclasses

    import jax

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Example:
        image: np.ndarray
        label: int

    found = make_batch([Example(np.ones((2, 2)), label) for label in range(3)])
    assert type(found) is Example and found.image.shape == (3, 2, 2) and found.label.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ([{"a": {"image": np.zeros(2)}}, {"a": {"image": np.zeros(3)}}], r"`a/image` is shape \(2,\) in element 0 of the batch and shape \(3,\) in element 1"),
        ([{"a": 1}, {"b": 1}], "the element is dict of 'a' in element 0 of the batch and dict of 'b' in element 1"),
        ([{"a": [1, 2]}, {"a": [1]}], "`a` is list of length 2 .* list of length 1"),
        ([(1, None), (1, 2)], "`1` is nothing .* int"),
        ([{"a": 1}, 5], "the element is dict of 'a' .* int"),
    ],
)
def test_batches_of_different_elements_name_the_leaf(elements, message):
    with pytest.raises(ValueError, match=f"cannot batch: {message}"):
        make_batch(elements)


# What goes wrong in a transform.


class Fragile(ours.MapTransform):
    def map(self, element):
        if element == 57:
            raise ZeroDivisionError("mine")
        return element


class Exits(ours.MapTransform):
    def map(self, element):
        sys.exit(3)


class Unpicklable(ours.MapTransform):
    def map(self, element):
        class Local(Exception):
            pass

        raise Local("only here")


class Ends(ours.MapTransform):
    def map(self, element):
        return next(iter([]))


class Broken(list):
    def __getitem__(self, key):
        if key == 57:
            raise OSError("unreadable")
        return key


def simple(source, *operations, **options):
    return ours.DataLoader(data_source=source, sampler=ours.SequentialSampler(len(source)), operations=operations, **options)


@pytest.mark.parametrize("worker_count", [0, 2])
def test_exceptions_name_operation_and_record(worker_count):
    iterator = iter(simple(range(100), ours.Batch(1, batch_fn=lambda rows: rows[0]), Fragile(), ours.Batch(5), worker_count=worker_count))
    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        list(iterator)
    (note,) = caught.value.__notes__
    assert note == "in operation 2 of 3, Fragile.map, at index 57 of the sampler of range(0, 100)"
    iterator = iter(simple(range(100), Fragile(), worker_count=worker_count))
    with pytest.raises(ZeroDivisionError) as caught:
        list(iterator)
    (note,) = caught.value.__notes__
    assert note == "in operation 1 of 1, Fragile.map, at index 57 of the sampler, record 57 of range(0, 100)"
    if worker_count:
        trace = str(caught.value.__cause__)
        assert "worker 1 of 2" in trace and "test_grain_api.py" in trace and "raise ZeroDivisionError" in trace
        assert list(iterator) == [] and not multiprocessing.active_children()
    else:
        assert list(iterator) == list(range(58, 100)), "a caller who catches it goes on with the next record"


@pytest.mark.parametrize(("worker_count", "threads"), [(0, 0), (0, 4), (2, 4)])
def test_exceptions_of_a_source_name_the_record(worker_count, threads):
    iterator = iter(simple(Broken(range(100)), worker_count=worker_count, read_options=ours.ReadOptions(threads, 20)))
    assert take(iterator, 57) == list(range(57))
    with pytest.raises(OSError, match="unreadable") as caught:
        next(iterator)
    assert caught.value.__notes__ == ["reading record 57 of a Broken of length 100"]


@pytest.mark.parametrize(
    ("operation", "kind", "text"),
    [(Exits(), errors.WorkerError, "SystemExit: 3"), (Unpicklable(), errors.WorkerError, "Local: only here"), (Ends(), RuntimeError, "raised StopIteration")],
)
def test_exceptions_that_cannot_travel(operation, kind, text):
    with pytest.raises(kind, match=text) as caught:
        list(simple(range(5), operation, worker_count=1))
    assert "worker 0 of 1" in str(caught.value.__cause__)


# Processes.


def handles():
    return sorted(os.listdir("/proc/self/fd"))


def children():
    return [int(pid) for task in pathlib.Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


def is_alive(pid):
    status = pathlib.Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, limit=10):
    end = time.monotonic() + limit
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


class Arrays(ours.MapTransform):
    def map(self, element):
        return {"image": np.full((64, 1024), element, np.int32), "id": int(element)}


class Slow(ours.MapTransform):
    def map(self, element):
        time.sleep(60)


@linux
def test_arrays_travel_without_a_copy_outlive_all_and_are_writable():
    iterator = iter(simple(range(300), Arrays(), ours.Batch(2), worker_count=2))
    kept = [next(iterator) for _ in range(40)]
    assert len(pathlib.Path("/proc/self/maps").read_text().split("memfd:prep")) - 1 <= 2 * 12, "beyond some slots, arrays are copied"
    later = [next(iterator) for _ in range(4)]
    iterator.close()
    del iterator
    gc.collect()
    for number, batch in enumerate(kept + later):
        first = 4 * (number // 2) + number % 2
        assert batch["id"].tolist() == [first, first + 2]
        assert (batch["image"] == np.array([first, first + 2])[:, None, None]).all() and batch["image"].flags.writeable
        batch["image"][:] = 0
    view = kept[0]["image"][1, 5:9]
    del kept, later, batch
    gc.collect()
    assert view.tolist() == np.zeros((4, 1024)).tolist()
    del view
    gc.collect()
    assert "memfd:prep" not in pathlib.Path("/proc/self/maps").read_text()


@linux
def test_slots_are_used_again_and_grow():
    class Ragged(ours.MapTransform):
        def map(self, element):
            return np.full(20_000 + 3000 * element, element)

    for element, array in enumerate(simple(range(60), Ragged(), worker_count=2)):
        assert array.shape == (20_000 + 3000 * element,) and (array == element).all()
        assert pathlib.Path("/proc/self/maps").read_text().count("memfd:prep") <= 10


@linux
@pytest.mark.parametrize("how", ["close", "collected", "cycle", "finished", "error", "interrupted"])
def test_nothing_is_left_of_an_iterator(how):
    before = handles(), threading.active_count(), children()
    iterator = iter(simple(range(40), Fragile() if how == "error" else Arrays(), worker_count=2, read_options=ours.ReadOptions(2, 4)))
    next(iterator)
    assert len(children()) == len(before[2]) + 2
    if how == "close":
        iterator.close()
        with pytest.raises(errors.ClosedError):
            next(iterator)
    elif how == "cycle":
        iterator.itself = iterator
    elif how == "finished":
        assert len(list(iterator)) == 39
    elif how == "error":
        iterator._data_loader._operations = [Exits()]
        iterator.set_state(iterator.get_state())
        with pytest.raises(errors.WorkerError):
            next(iterator)
    elif how == "interrupted":
        iterator._elements.close()
        assert next(iterator)["id"] == 1, "workers start anew where the stream stands"
    start = time.monotonic()
    iterator_left = iterator if how in ("close", "finished", "error") else None
    del iterator
    gc.collect()
    assert (handles(), threading.active_count(), children()) == before
    assert time.monotonic() - start < 10
    del iterator_left


@linux
def test_a_slow_transform_is_not_waited_for():
    others = children()
    iterator = iter(simple(range(40), Slow(), worker_count=2))
    iterator.start_prefetch()
    start = time.monotonic()
    iterator.close()
    assert time.monotonic() - start < 10 and children() == others


@linux
def test_a_killed_worker_is_reported_and_the_others_end():
    before, others = handles(), children()
    iterator = iter(simple(range(100_000), Arrays(), worker_count=3))
    next(iterator)
    victim = iterator._elements._pool.workers[2].process.pid
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(errors.WorkerError, match=rf"worker 2 of 3 \(process {victim}\) was killed by SIGKILL; .* memory runs out"):
        list(iterator)
    assert list(iterator) == [] and children() == others
    del iterator
    gc.collect()
    assert handles() == before


@linux
def test_creating_and_dropping_leaves_nothing_behind():
    """A thousand times in `make soak`."""

    def once(number):
        iterator = iter(simple(range(40), Arrays(), worker_count=1 + number % 2, read_options=ours.ReadOptions(number % 3, 4)))
        if number % 4:
            next(iterator)

    def left():
        # Of shared memory what this program has mapped: others have some too.
        shared = pathlib.Path("/proc/self/maps").read_text().count("/dev/shm")
        return handles(), threading.active_count(), children(), shared

    for number in range(6):
        once(number)
    gc.collect()
    before = left()
    for number in range(1000 if SOAK else 100):
        once(number)
    gc.collect()
    assert left() == before


PROGRAM = """
import os, sys, time
import numpy as np
import prep.grain as grain

class Arrays(grain.MapTransform):
    def map(self, element):
        assert not {"jax", "tensorflow", "grain"} & set(sys.modules)
        return np.full((64, 1024), element)

def loader(**options):
    options = {"worker_count": 2, "read_options": grain.ReadOptions(2, 8)} | options
    return grain.DataLoader(data_source=range(100_000), sampler=grain.SequentialSampler(100_000), operations=[Arrays()], **options)
"""

EXITS = {
    "live iterator in a module global": "iterator = iter(loader()); next(iterator)",
    "threads alone": "iterator = iter(loader(worker_count=0)); next(iterator)",
    "in the middle of an epoch": "for batch in loader():\n    break",
    "in a reference cycle": "class C: pass\nc = C(); c.c = c; c.iterator = iter(loader()); next(c.iterator)",
    "with arrays alone": "array = next(iter(loader()))",
    "started and not read": "iterator = iter(loader()); iterator.start_prefetch()",
    "fork after import": "iterator = iter(loader()); next(iterator)\nif (pid := os.fork()) == 0:\n    assert next(iterator)[0, 0] == 1\n    os._exit(0)\n"
    "assert os.waitpid(pid, 0)[1] == 0 and next(iterator)[0, 0] == 1",
    "in a thread": "import threading\ndef run():\n    global iterator\n    iterator = iter(loader()); next(iterator)\nt = threading.Thread(target=run); t.start(); t.join(); next(iterator)",
}


@linux
@pytest.mark.parametrize("code", EXITS.values(), ids=EXITS)
def test_a_program_ends_silently_with_all_its_processes(code, run):
    done = run(PROGRAM + code + "\nimport multiprocessing\nprint(*(child.pid for child in multiprocessing.active_children()))\nsys.stdout.flush()")
    assert not any(is_alive(pid) for pid in map(int, done.stdout.split()))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_ways_to_start_give_the_same(method, run):
    code = """
if __name__ == "__main__":
    found = next(iter(loader(start_method=sys.argv[1], worker_count=1)))
    assert (found == 0).all() and found.shape == (64, 1024)
"""
    run(PROGRAM + code, method, timeout=60)


def test_a_session_without_a_file_can_spawn():
    """As in a notebook, whose functions go by value."""
    code = PROGRAM + "assert next(iter(loader(start_method='spawn', worker_count=1))).shape == (64, 1024)"
    with conftest.started(sys.executable, "-c", code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _, messages = process.communicate(timeout=60)
    assert (process.returncode, messages) == (0, "")


def worker_pids(process):
    """Of a program that prints them."""
    return list(map(int, process.stdout.readline().split()))


PIDS = "import multiprocessing\nprint(*(child.pid for child in multiprocessing.active_children()), flush=True)\n"


@linux
@pytest.mark.parametrize("rest", ["for batch in iterator: pass", "time.sleep(60)", "iterator._data_loader; [0 for _ in iterator]"])
def test_ctrl_c_ends_a_program_and_its_workers(rest, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + "iterator = iter(loader()); next(iterator)\n" + PIDS + rest)
    with conftest.started_as_from_a_terminal(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        pids = worker_pids(process)
        assert len(pids) == 2
        # As a terminal does: to all of them.
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == -signal.SIGINT and errors.decode().count("Traceback") == 1
        wait_until(lambda: not any(map(is_alive, pids)))


@linux
@pytest.mark.parametrize("how", ["busy", "waiting", "in a transform"])
def test_workers_end_when_the_main_process_is_killed(how, tmp_path):
    program = tmp_path / "program.py"
    code = {
        "busy": "iterator = iter(loader()); next(iterator)\n" + PIDS + "for batch in iterator: pass",
        "waiting": "iterator = iter(loader()); next(iterator)\n" + PIDS + "time.sleep(60)",
        "in a transform": "Arrays.map = lambda self, element: time.sleep(60)\niterator = iter(loader()); iterator.start_prefetch()\n" + PIDS + "next(iterator)",
    }[how]
    program.write_text(PROGRAM + code)
    with conftest.started(sys.executable, program, stdout=subprocess.PIPE) as process:
        pids = worker_pids(process)
        process.kill()
        process.wait()
        try:
            wait_until(lambda: not any(map(is_alive, pids)))
        finally:
            for pid in filter(is_alive, pids):
                os.kill(pid, signal.SIGKILL)


@linux
def test_an_interrupted_wait_goes_on_where_it_stood(tmp_path):
    class Interrupting(ours.MapTransform):
        def map(self, element):
            if element == 3 and not os.path.exists(mark):
                open(mark, "w").close()
                os.kill(main, signal.SIGUSR1)
                time.sleep(60)
            return element

    def interrupt(*_):
        raise KeyboardInterrupt

    main, mark, others = os.getpid(), str(tmp_path / "mark"), children()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        iterator = iter(simple(range(9), Interrupting(), worker_count=2))
        found = []
        with pytest.raises(KeyboardInterrupt):
            for element in iterator:
                found.append(element)
        assert children() == others
        assert found + list(iterator) == list(range(9))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_workers_draw_different_numbers_from_numpys_own_generator():
    class Draw(ours.MapTransform):
        def map(self, element):
            return float(np.random.uniform())

    assert len(set(simple(range(4), Draw(), worker_count=2))) == 4


def test_threads_of_a_loader_end_with_it():
    before = threading.active_count()
    iterator = iter(simple(range(100), read_options=ours.ReadOptions(4, 50)))
    take(iterator, 30)
    assert threading.active_count() > before
    del iterator
    gc.collect()
    assert threading.active_count() == before


@pytest.mark.parametrize("worker_count", [0, 2])
def test_our_sources_under_our_loader(worker_count):
    class Keep(ours.MapTransform):
        def map(self, element):
            return {"image": element["image"], "label": element["label"]}

    source = prep.grain.DataSource("cifar10", split="test")
    sampler = ours.IndexSampler(len(source), shuffle=True, num_epochs=1, seed=3)
    mine = ours.DataLoader(data_source=source, sampler=sampler, operations=[Keep(), ours.Batch(7)], worker_count=worker_count)
    labels = np.concatenate([batch["label"] for batch in mine]).tolist()
    assert sorted(labels) == sorted(int(element["label"]) for element in source) and len(labels) == 60
    if not worker_count:
        assert labels == [int(source[sampler[index].record_key]["label"]) for index in range(60)]


def test_load_is_the_shorter_way_to_the_same_batches():
    def stream(package):
        operations = [
            package.MapOperation(lambda element: element * 2),
            package.RandomMapOperation(lambda element, rng: element + rng.integers(1000)),
            package.FilterOperation(lambda element: element % 3 != 1),
        ]
        loader = package.load(
            list(range(31)),
            num_epochs=2,
            shuffle=True,
            seed=5,
            shard_options=package.ShardOptions(1, 2),
            transformations=operations,
            batch_size=4,
            drop_remainder=True,
        )
        return [batch.tolist() for batch in loader]

    wanted = stream(theirs)
    assert wanted and stream(ours) == wanted
    assert list(ours.load([1, 2], num_epochs=1)) == list(theirs.load([1, 2], num_epochs=1)) == [1, 2]
