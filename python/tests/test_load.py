"""`prep.load` and `prep.open`: values, shapes, order, state, and memory that is shared with Rust."""

import base64
import gc
import io
import json
import pathlib
import pickle

import numpy as np
import pytest
from conftest import GOLDEN, command

import prep


def labels(batches):
    return [batch["label"].tolist() for batch in batches]


def ids(batches):
    return [batch["id"].tolist() for batch in batches]


def test_elements_are_what_was_stored():
    image = pytest.importorskip("PIL.Image")

    dataset = prep.open("cifar10", split="test")
    encoded = prep.load("cifar10", split="test", batch_size=60, num_epochs=1, order="source", decode=False)
    (batch,) = encoded
    assert len(dataset) == 60
    for index, element in enumerate(dataset):
        assert list(element) == ["id", "image", "label"]
        assert element["image"].shape == (32, 32, 3) and element["image"].dtype == np.uint8
        assert isinstance(element["label"], np.int64) and isinstance(element["id"], bytes)
        assert batch["id"][index] == element["id"] and batch["label"][index] == element["label"]
        pixels = np.asarray(image.open(io.BytesIO(batch["image"][index])))
        np.testing.assert_array_equal(pixels, element["image"])
        assert element["id"] in dataset.record(index) and batch["image"][index] in dataset.record(index)


def test_indexing_is_that_of_a_sequence():
    dataset = prep.open("cifar10", split="test")
    every = [element["id"] for element in dataset]
    assert dataset[-1]["id"] == every[-1] and dataset[np.int32(3)]["id"] == every[3]
    for key in ([3, 1, -1, 3], np.array([5, 2]), (7,), range(0, 9, 2), []):
        batch = dataset[key]
        assert batch["id"].tolist() == [every[index] for index in key]
        assert batch["image"].shape == (len(key), 32, 32, 3) and batch["label"].shape == (len(key),)
    for key in (slice(None), slice(50, 99), slice(None, None, -7), slice(5, 5), slice(-3, None)):
        assert dataset[key]["id"].tolist() == every[key]
    for key in (60, -61, 2**80, [0, 60], [-61]):
        with pytest.raises(IndexError, match="out of range"):
            dataset[key]
    for key in ("x", 1.0, None, ["x"], [[1]], {"a": 1}):
        with pytest.raises(TypeError):
            dataset[key]
    assert dataset.records([1, -1]) == [dataset.record(1), dataset.record(59)]
    assert [element["id"] for element in dataset.elements(range(60))] == every


def test_sub_splits_are_those_of_the_command():
    part = prep.open("cifar10", split="train[10:20]+test[:5%]")
    assert len(part) == 13
    assert part[0]["id"] == prep.open("cifar10")[10]["id"]
    with pytest.raises(prep.errors.InvalidError, match="there is no split `valid`"):
        prep.open("cifar10", split="valid")


def test_specs_and_features_need_no_data():
    loader = prep.load("cifar10", batch_size=8, drop_remainder=True)
    spec = loader.element_spec
    assert spec["image"] == prep.ArraySpec((8, 32, 32, 3), np.dtype("uint8"))
    assert spec["label"] == prep.ArraySpec((8,), np.dtype("int64"))
    assert prep.load("cifar10", batch_size=8).element_spec["label"].shape == (None,)
    assert prep.open("cifar10").element_spec["image"].shape == (32, 32, 3)
    assert loader.features["label"]["names"][3] == "cat"
    assert loader.features == prep.show("cifar10")["features"] == loader.dataset.features
    assert prep.load("cifar10", batch_size=8, decode=False).element_spec["image"] == prep.ArraySpec((None,), np.dtype("O"))
    assert list(prep.load("cifar10", batch_size=8, columns=["label"]).element_spec) == ["label"]


def test_shapes_are_static_with_drop_remainder():
    loader = prep.load("cifar10", batch_size=64, num_epochs=2, drop_remainder=True)
    spec = loader.element_spec
    batches = list(loader)
    assert len(batches) == len(loader) == 2 * (300 // 64) == 2 * loader.steps_per_epoch
    for batch in batches:
        assert {name: (array.shape, array.dtype) for name, array in batch.items()} == spec


def test_every_record_comes_once_an_epoch_in_another_order_each():
    sizes = [batch["label"].shape[0] for batch in prep.load("cifar10", batch_size=64, num_epochs=2)]
    assert sizes == [64, 64, 64, 64, 44] * 2
    rows = sum(ids(prep.load("cifar10", batch_size=50, num_epochs=2)), [])
    every = sorted(element["id"] for element in prep.open("cifar10"))
    assert sorted(rows[:300]) == sorted(rows[300:]) == every
    assert rows[:300] != rows[300:]


def test_threads_and_prefetch_do_not_change_the_stream():
    reference = ids(prep.load("cifar10", batch_size=32, num_epochs=2, seed=9))
    for options in ({"num_threads": 0}, {"num_threads": 1, "prefetch": 1}, {"num_threads": 5}, {"prefetch_bytes": 1}):
        assert ids(prep.load("cifar10", batch_size=32, num_epochs=2, seed=9, **options)) == reference


@pytest.mark.parametrize("order", ["prep", "grain", "source"])
def test_batches_are_those_of_the_command(order):
    """`prep load --indices` names the records; `prep.open` has them."""
    options = ["--split", "test", "--batch", 7, "--seed", 5, "--epochs", 2, "--order", order]
    for shard in (0, 1):
        printed = command("load", "cifar10", "--indices", "--shard", f"{shard}/2", *options)
        steps = [json.loads(line)["indices"] for line in printed.splitlines()]
        loader = prep.load(
            "cifar10", split="test", batch_size=7, seed=5, num_epochs=2, order=order, shard_index=shard, shard_count=2
        )
        dataset = prep.open("cifar10", split="test")
        assert len(loader) == len(steps)
        for batch, indices in zip(loader, steps, strict=True):
            wanted = dataset[indices]
            for name in ("id", "image", "label"):
                np.testing.assert_array_equal(batch[name], wanted[name])


def test_launch_starts_this_program_again():
    assert command("launch", "--processes", 1, "--", "list", "--json") == command("list", "--json") != ""


def test_values_are_those_that_rust_prints():
    """Rows of `prep cat`, dealt by the indices of `prep load`: the batches of the loader in Rust, without Python's decoding of anything."""
    cat = [json.loads(line)["features"] for line in command("cat", "cifar10", "--split", "test", "--json").splitlines()]
    steps = command("load", "cifar10", "--split", "test", "--indices", "--batch", 25, "--seed", 8, "--drop-remainder").splitlines()
    loader = prep.load("cifar10", split="test", batch_size=25, seed=8, num_epochs=1, drop_remainder=True)
    assert len(cat) == 60 and len(steps) == 2
    for batch, step in zip(loader, steps, strict=True):
        for row, index in enumerate(json.loads(step)["indices"]):
            for name in ("id", "image", "label"):
                value, wanted = batch[name][row], cat[index][name]
                data = base64.b64decode(wanted["data"])
                if name == "id":
                    assert value == data
                else:
                    assert (str(value.dtype), list(value.shape), value.tobytes()) == (wanted["dtype"], wanted["shape"], data)


def test_hosts_deal_the_rows_of_one_stream():
    whole = ids(prep.load("cifar10", batch_size=40, num_epochs=1, seed=3))
    for hosts in (2, 4, 8):
        shares = [
            ids(prep.load("cifar10", batch_size=40 // hosts, num_epochs=1, seed=3, shard_index=host, shard_count=hosts))
            for host in range(hosts)
        ]
        assert [sum(parts, []) for parts in zip(*shares, strict=True)] == whole


def test_the_stream_goes_on_from_a_state():
    reference = ids(prep.load("cifar10", batch_size=20, num_epochs=2, seed=4))
    for after in (0, 1, 7, 15, 29, 30):
        loader = prep.load("cifar10", batch_size=20, num_epochs=2, seed=4)
        for _ in range(after):
            next(loader)
        state = loader.state()
        assert type(state) is dict and json.loads(json.dumps(state)) == state and state["sample_position"] == 20 * after
        assert ids(prep.load("cifar10", batch_size=20, num_epochs=2, state=state)) == reference[after:]
        assert ids(prep.load("cifar10", batch_size=20, num_epochs=2, state=json.dumps(state))) == reference[after:]
        fresh = prep.load("cifar10", batch_size=20, num_epochs=2)
        next(fresh, None)
        fresh.restore(state)
        assert fresh.state() == state
        assert ids(fresh) == reference[after:]


def test_a_state_that_does_not_fit_is_refused_naming_both_sides():
    loader = prep.load("cifar10", batch_size=20, seed=4)
    state = loader.state()
    for wrong, text in (
        ({"seed": 5}, "its seed is `4`, here it is `5`"),
        ({"split": "test"}, "split"),
        ({"order": "source"}, "order"),
    ):
        with pytest.raises(prep.errors.StateError, match=text):
            prep.load("cifar10", **{"batch_size": 20, "state": state, **wrong})
    for broken in ({}, {**state, "format": 99}, "{", "[]"):
        with pytest.raises(prep.errors.StateError):
            loader.restore(broken)
    assert ids([next(loader)]) == ids([next(prep.load("cifar10", batch_size=20, seed=4))])


def test_arrays_view_the_memory_of_the_loader_and_outlive_it():
    loader = prep.load("cifar10", batch_size=16, num_epochs=1)
    batch = next(loader)
    image, copy = batch["image"], batch["image"].copy()
    assert type(image.base) is prep._core.Buffer and type(batch["label"].base) is prep._core.Buffer
    assert not image.flags.owndata and image.flags.writeable and image.flags.c_contiguous
    assert memoryview(image.base).nbytes == image.nbytes
    row = image[3, 1:, ::2]
    del batch, image
    list(loader)
    loader.close()
    del loader
    gc.collect()
    np.testing.assert_array_equal(row, copy[3, 1:, ::2])
    row[:] = 7
    assert (row == 7).all()


def test_memory_goes_back_to_the_loader_when_the_last_array_dies_and_not_before():
    loader = prep.load("cifar10", batch_size=16, num_threads=1, prefetch=1)
    kept = next(loader)["image"]
    copy = kept.copy()
    places = set()
    for _ in range(200):
        image = next(loader)["image"]
        places.add(image.ctypes.data)
        assert image.ctypes.data != kept.ctypes.data
        image[:] = 0
        del image
    assert len(places) <= 5, "buffers are used again"
    np.testing.assert_array_equal(kept, copy)


def test_a_loader_is_its_own_iterator_and_goes_on_after_a_break():
    reference = labels(prep.load("cifar10", batch_size=50, num_epochs=1))
    loader = prep.load("cifar10", batch_size=50, num_epochs=1)
    seen = []
    for batch in loader:
        seen.append(batch["label"].tolist())
        break
    seen += labels(loader)
    assert seen == reference
    assert list(loader) == []


def test_endless_streams_have_no_length():
    loader = prep.load("cifar10", batch_size=50)
    with pytest.raises(TypeError, match="endless"):
        len(loader)
    assert loader.steps_per_epoch == 6


def test_closing():
    with prep.load("cifar10", batch_size=50) as loader:
        batch = next(loader)
    for call in (loader.__next__, lambda: loader.restore({}), lambda: pickle.dumps(loader)):
        with pytest.raises(prep.errors.ClosedError, match="closed"):
            call()
    loader.close()
    assert loader.state()["sample_position"] == 50
    assert batch["label"].shape == (50,)


def test_pickles_small_fresh_and_part_read():
    reference = ids(prep.load("cifar10", batch_size=50, num_epochs=2, seed=11))
    loader = prep.load("cifar10", batch_size=50, num_epochs=2, seed=11)
    for after in range(3):
        text = pickle.dumps(loader)
        assert len(text) < 1500
        assert ids(pickle.loads(text)) == reference[after:]
        next(loader)
    dataset = prep.open("cifar10", split="test[5:]")
    text = pickle.dumps(dataset)
    assert len(text) < 300
    again = pickle.loads(text)
    assert repr(again) == repr(dataset) and again[0]["id"] == dataset[0]["id"]


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        ({"batch_size": 0}, ValueError, "batch size is 0"),
        ({"batch_size": -1}, ValueError, "`batch_size` is -1"),
        ({"batch_size": "8"}, TypeError, None),
        ({"seed": 2**64}, ValueError, "`seed`"),
        ({"seed": 2**32, "order": "grain"}, ValueError, "seed below"),
        ({"shard_index": 2, "shard_count": 2}, ValueError, "2/2"),
        ({"shard_count": 0}, ValueError, None),
        ({"order": "random"}, ValueError, "`random`"),
        ({"columns": ["pixels"]}, ValueError, "`pixels`"),
        ({"split": "train["}, ValueError, None),
        ({"num_threads": 10**6}, ValueError, "too many"),
        ({"name": "cifar"}, KeyError, "did you mean `cifar10`"),
        ({"name": "cifar10:9.9.9"}, KeyError, "3.0.2"),
        ({"name": "no name"}, ValueError, "not a dataset name"),
        ({"state": 3}, ValueError, None),
    ],
)
def test_bad_arguments_are_told_as_what_they_are(wrong, kind, text):
    with pytest.raises(kind, match=text):
        prep.load(**{"name": "cifar10", "batch_size": 8, **wrong})


def test_a_build_counts_statistics_unless_told_not_to(tmp_path, catalog):
    assert "duplicates" in prep.show("cifar10", catalog=catalog)["statistics"]
    options = {"from_": GOLDEN / "cifar10", "checksum": False, "catalog": tmp_path}
    outcome = prep.build("cifar10", statistics=False, **options)
    assert outcome["status"] == "built" and not pathlib.Path(outcome["path"], "prep_statistics.json").exists()
    assert "duplicates" not in prep.show("cifar10", catalog=tmp_path)["statistics"]
    assert prep.build("cifar10", statistics=False, **options)["status"] == "up to date"
    with pytest.raises(prep.errors.PrepError, match="other output options"):
        prep.build("cifar10", **options)


def test_damage_names_the_file_and_the_record(tmp_path):
    outcome = prep.build("cifar10", from_=GOLDEN / "cifar10", checksum=False, catalog=tmp_path)
    shard = pathlib.Path(outcome["path"], "cifar10-test.array_record-00000-of-00001")
    data = bytearray(shard.read_bytes())
    dataset = prep.open("cifar10", split="test", catalog=tmp_path)
    place = data.index(dataset.record(17))
    data[place + 100] ^= 1
    shard.write_bytes(data)
    dataset = prep.open("cifar10", split="test", catalog=tmp_path)
    dataset[16], dataset[18]
    with pytest.raises(prep.errors.DamagedError, match=r"cifar10-test.array_record-00000-of-00001.*record 17"):
        dataset[17]
    loader = prep.load("cifar10", split="test", batch_size=10, order="source", catalog=tmp_path)
    assert next(loader)["label"].shape == (10,)
    for _ in range(2):
        with pytest.raises(prep.PrepError, match="17"):
            next(loader)
    assert loader.state()["sample_position"] == 10


def test_where_the_time_of_a_stream_goes():
    loader = prep.load("cifar10", batch_size=16, num_epochs=1, profile=True, on_error="skip:3", cache_size="2G")
    assert loader.metrics()["limit"] == "nothing"
    batches = list(loader)
    metrics = loader.metrics()
    assert (metrics["batches"], metrics["rows"], metrics["skipped"]) == (len(batches), 300, 0)
    assert metrics["bytes"] >= 300 * 32 * 32 * 3 and metrics["read_seconds"] > 0 and metrics["advice"]
    with pytest.raises(prep.errors.InvalidError, match="skip"):
        prep.load("cifar10", batch_size=16, on_error="ignore")


def test_what_is_read_of_a_store_may_be_kept(tmp_path):
    loader = prep.load("cifar10", batch_size=16, num_epochs=1, cache=tmp_path / "kept", cache_size="1G")
    assert loader.metrics()["cached_bytes"] == 0 and sum(len(batch["label"]) for batch in loader) == 300
    assert sum(len(batch["label"]) for batch in pickle.loads(pickle.dumps(loader))) == 0
    with pytest.raises(prep.errors.InvalidError, match="cache_size"):
        prep.load("cifar10", batch_size=16, cache=tmp_path / "kept", cache_size="much")


def test_damaged_records_may_be_left_out(damaged_catalog):
    with pytest.raises(prep.PrepError):
        list(prep.load("cifar10", batch_size=16, num_epochs=1, catalog=damaged_catalog))
    loader = prep.load("cifar10", batch_size=16, num_epochs=1, catalog=damaged_catalog, on_error="skip")
    rows = sum(len(batch["label"]) for batch in loader)
    assert 0 < loader.metrics()["skipped"] == 300 - rows


def test_windows_are_an_order():
    labels = [batch["label"].tolist() for batch in prep.load("cifar10", split="test", batch_size=60, seed=1, num_epochs=1, order="window:10")]
    indices = [prep.open("cifar10", split="test")[index]["label"] for index in range(60)]
    windows = [sorted(indices[start : start + 10]) for start in range(0, 60, 10)]
    found = [sorted(labels[0][start : start + 10]) for start in range(0, 60, 10)]
    assert sorted(found) == sorted(windows) and found != windows
    with pytest.raises(prep.errors.InvalidError, match="window:N"):
        prep.load("cifar10", batch_size=1, order="window:0")
