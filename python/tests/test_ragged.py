"""Tensors whose sizes vary from row to row: folders that TFDS wrote, through `prep.open` and `prep.load`."""

import gc
import json
import pickle
import shutil
import sys

import numpy as np
import pytest
from adopt import adopt
from conftest import ROOT, command

import prep

DATA = ROOT / "python" / "tests" / "data"
sys.path.insert(0, str(DATA))

from make_ragged import rows

SPECS = {
    "one_size": {
        "id": ((), "int64"),
        "text": ((), "object"),
        "tokens": ((None,), "int64"),
        "track": ((None, 3), "int16"),
        "curve": ((2, None), "float32"),
        "mask": ((None,), "bool"),
    },
    "two_sizes": {
        "id": ((), "int64"),
        "grid": ((None, None, 2), "float32"),
        "map": ((None, None), "int32"),
        "wide": ((None, 2, None), "float64"),
    },
}


@pytest.fixture(scope="module", params=SPECS)
def ragged(request, tmp_path_factory):
    """Name, catalog, and the rows that went in."""
    catalog = tmp_path_factory.mktemp("ragged")
    adopt(DATA / "ragged" / request.param, catalog, request.param)
    return request.param, catalog, list(rows(request.param))


def same(found, wanted):
    """Values, shape and dtype."""
    if isinstance(wanted, bytes):
        assert found == wanted
        return
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


def test_elements_and_batches_hold_what_tfds_stored(ragged):
    name, catalog, wanted = ragged
    dataset = prep.open(name, catalog=catalog)
    assert len(dataset) == len(wanted)
    for index, row in enumerate(wanted):
        element = dataset[index]
        assert list(element) == sorted(row)
        for key, value in row.items():
            same(element[key], value)
    for key in ([3, 0, -1, 3], slice(2, 9, 3), slice(None), []):
        batch = dataset[key]
        indices = range(len(wanted))[key] if isinstance(key, slice) else key
        for column in wanted[0]:
            assert len(batch[column]) == len(indices)
            for found, index in zip(batch[column], indices, strict=True):
                same(found, wanted[index][column])


def test_specs_say_which_sizes_vary(ragged):
    name, catalog, _ = ragged
    element = {key: prep.ArraySpec(shape, np.dtype(dtype)) for key, (shape, dtype) in SPECS[name].items()}
    assert prep.open(name, catalog=catalog).element_spec == element
    for rows, drop in ((4, True), (None, False)):
        spec = prep.load(name, catalog=catalog, batch_size=4, drop_remainder=drop).element_spec
        assert spec == {key: prep.ArraySpec((rows, *shape), dtype) for key, (shape, dtype) in element.items()}


@pytest.mark.parametrize("num_threads", [0, 3])
def test_streams_hold_the_rows_that_the_command_names(ragged, num_threads):
    name, catalog, wanted = ragged
    options = ["--batch", 4, "--seed", 6, "--epochs", 3, "--catalog", catalog]
    steps = [json.loads(line)["indices"] for line in command("load", name, "--indices", *options).splitlines()]
    loader = prep.load(name, catalog=catalog, batch_size=4, seed=6, num_epochs=3, num_threads=num_threads)
    seen = []
    for batch, indices in zip(loader, steps, strict=True):
        seen += indices
        for column in wanted[0]:
            is_fixed = None not in SPECS[name][column][0]
            assert type(batch[column]) is (np.ndarray if is_fixed else list)
            for found, index in zip(batch[column], indices, strict=True):
                same(found, wanted[index][column])
    assert sorted(seen) == sorted([*range(len(wanted))] * 3)


def test_rows_view_the_memory_of_the_loader_and_outlive_it(ragged):
    name, catalog, wanted = ragged
    column = max((key for key, (shape, _) in SPECS[name].items() if None in shape), key=len)
    loader = prep.load(name, catalog=catalog, batch_size=len(wanted), order="source", num_epochs=5, prefetch=1)
    kept = next(loader)[column]
    for row in kept:
        assert type(row.base) is prep._core.Buffer and row.flags.writeable and row.flags.aligned
    one, copy = kept[6], kept[6].copy()
    assert one.size
    del kept
    list(loader)
    loader.close()
    del loader
    gc.collect()
    np.testing.assert_array_equal(one, copy)
    same(one, wanted[6][column])


def test_columns_states_and_data_sources(ragged):
    name, catalog, wanted = ragged
    column = next(key for key, (shape, _) in SPECS[name].items() if None in shape)
    loader = prep.load(name, catalog=catalog, batch_size=3, seed=2, columns=["id", column])
    first = next(loader)
    assert list(first) == sorted(["id", column])
    again = pickle.loads(pickle.dumps(loader))
    for batch in (next(loader), next(again)):
        for index, found in zip(batch["id"], batch[column], strict=True):
            same(found, wanted[index][column])
    source = prep.grain.DataSource(name, catalog=catalog)
    for element, row in zip(source.__getitems__(range(len(wanted))), wanted, strict=True):
        for key, value in row.items():
            same(element[key], value)


def test_values_that_do_not_fill_a_shape_are_an_error_that_names_the_record(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(DATA / "ragged" / "one_size", source)
    features = json.loads((source / "features.json").read_text())
    features["featuresDict"]["features"]["track"]["tensor"]["shape"]["dimensions"] = ["-1", "7"]
    (source / "features.json").write_text(json.dumps(features))
    adopt(source, tmp_path / "catalog", "one_size")
    dataset = prep.open("one_size", catalog=tmp_path / "catalog")
    assert dataset[0]["track"].shape == (0, 7)
    with pytest.raises(prep.errors.DamagedError, match="record 1 of .*one_size-train.array_record-00000-of-00001.*`track`: 3 values"):
        dataset[1]
    with pytest.raises(prep.errors.DamagedError, match="3 values"):
        dataset[:]


@pytest.fixture(scope="module")
def nested(tmp_path_factory):
    """Catalog and rows of features in features."""
    catalog = tmp_path_factory.mktemp("nested")
    adopt(DATA / "ragged" / "nested", catalog, "nested")
    return catalog, list(rows("nested"))


def same_nested(found, wanted):
    if isinstance(wanted, dict):
        assert type(found) is dict and list(found) == sorted(wanted)
        for key in wanted:
            same_nested(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert type(found) is list and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same_nested(one, other)
    elif wanted is None:
        assert found is None
    else:
        same(found, wanted)


def test_elements_of_nested_features_are_nested(nested):
    catalog, wanted = nested
    dataset = prep.open("nested", catalog=catalog)
    for index, row in enumerate(wanted):
        same_nested(dataset[index], row)
    for found, row in zip(prep.grain.DataSource("nested", catalog=catalog).__getitems__(range(len(wanted))), wanted, strict=True):
        same_nested(found, row)


def test_specs_of_nested_features_are_nested(nested):
    catalog, _ = nested
    spec = prep.open("nested", catalog=catalog).element_spec
    assert spec["ints"] == prep.ArraySpec((None, None), np.dtype("int32"))
    assert spec["deep"].shape == (None, None, None) and spec["sentences"].shape == (None, None)
    assert spec["boxes"] == {
        "corners": prep.ArraySpec((None, 4), np.dtype("float32")),
        "name": prep.ArraySpec((None,), np.dtype("O")),
    }
    assert spec["inner"]["far"] == {"vector": prep.ArraySpec((3,), np.dtype("uint8"))}


def test_batches_of_nested_features_hold_the_rows(nested):
    """Lists of rows where sizes vary; arrays where they do not, masked where a row may be missing."""
    catalog, wanted = nested
    dataset = prep.open("nested", catalog=catalog)
    loader = prep.load("nested", catalog=catalog, batch_size=4, seed=1, num_epochs=2)
    indices = [[int(number) for number in batch["id"]] for batch in prep.load("nested", catalog=catalog, batch_size=4, seed=1, num_epochs=2)]
    batches = [(indices[number], batch) for number, batch in enumerate(loader)]
    batches += [(key, dataset[key]) for key in ([2, 0, 10, 3], [])]
    seen = 0
    for chosen, batch in batches:
        seen += len(chosen)
        for row, index in enumerate(chosen):
            for key in ("ints", "deep", "words", "sentences", "maybe_text"):
                same_nested(batch[key][row], wanted[index][key])
            for key, value in wanted[index]["boxes"].items():
                same_nested(batch["boxes"][key][row], value)
            assert batch["inner"]["flag"][row] == wanted[index]["inner"]["flag"]
            same(batch["inner"]["far"]["vector"][row], wanted[index]["inner"]["far"]["vector"])
            is_missing = wanted[index]["maybe"] is None
            assert (batch["maybe"][row] is np.ma.masked) == is_missing
            assert is_missing or batch["maybe"][row] == wanted[index]["maybe"]
        assert batch["inner"]["far"]["vector"].shape == (len(chosen), 3)
        assert isinstance(batch["maybe"], np.ma.MaskedArray) and batch["maybe"].dtype == np.int32
    assert seen == 2 * len(wanted) + 4


def test_nested_views_outlive_their_batch(nested):
    catalog, wanted = nested
    loader = prep.load("nested", catalog=catalog, batch_size=11, order="source", num_epochs=4, prefetch=1)
    batch = next(loader)
    kept = batch["ints"][6][1], batch["boxes"]["corners"][7]
    assert all(type(array.base) is prep._core.Buffer for array in kept)
    del batch
    list(loader)
    loader.close()
    del loader
    gc.collect()
    same(kept[0], wanted[6]["ints"][1])
    same(kept[1], wanted[7]["boxes"]["corners"])


@pytest.mark.parametrize("batch_size", [1, 3])
def test_bytes_as_numbers_keep_their_lengths(batch_size, tmp_path, monkeypatch):
    """Also where a batch has one row, or a row no numbers."""
    wanted = [[1, 2, 3, 4], [255, 0, 255, 0, 1, 2, 3], [], [9]]
    (tmp_path / "fields.jsonl").write_text("".join(json.dumps({"field": row}) + "\n" for row in wanted))
    (tmp_path / "fields.toml").write_text(
        """format = 1
name = "fields"
version = "1.0.0"
[[sources]]
path = "fields.jsonl"
[reader]
kind = "jsonl"
[[splits]]
name = "train"
[features.field]
kind = "tensor"
dtype = "uint8"
shape = [-1]
"""
    )
    monkeypatch.setenv("PREP_CATALOG", str(tmp_path / "catalog"))
    command("register", tmp_path / "fields.toml", "-q")
    found = [field for batch in prep.load("fields", batch_size=batch_size, order="source", num_epochs=1) for field in batch["field"]]
    assert [field.tolist() for field in found] == wanted and {field.dtype.name for field in found} == {"uint8"}
