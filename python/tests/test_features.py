"""Every kind of feature that TFDS has, as arrays: records that TFDS wrote, and what TFDS decodes."""

import hashlib
import json
import shutil

import numpy as np
import pytest
from adopt import adopt
from array_record.python import array_record_module
from conftest import ROOT

import prep

GOLDEN = ROOT / "tests" / "golden" / "features" / "kitchen_sink"
# Not decoded in this version: a schema with them is refused, unless images stay files.
JPEG = ["grey_jpeg", "jpeg"]
ROWS = 3


def tfrecords(path):
    """The records of a TFRecord file, unchecked."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        yield data[at + 12 : at + 12 + length]
        at += length + 16


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    """A catalog with `sink`, all kinds but JPEG, and `photos`, with it."""
    catalog = tmp_path_factory.mktemp("features")
    for name, left_out in (("sink", JPEG), ("photos", [])):
        source = tmp_path_factory.mktemp(name) / "source"
        shutil.copytree(GOLDEN, source)
        features = json.loads((source / "features.json").read_text())
        for feature in left_out:
            del features["featuresDict"]["features"][feature]
        (source / "features.json").write_text(json.dumps(features))
        writer = array_record_module.ArrayRecordWriter(
            str(source / f"{name}-train.array_record-00000-of-00001"), "group_size:1"
        )
        for record in tfrecords(GOLDEN / "records.tfrecord"):
            writer.write(record)
        writer.close()
        adopt(source, catalog, name)
    return catalog


@pytest.fixture(scope="module")
def wanted():
    return [json.loads(line)["features"] for line in (GOLDEN / "expected.jsonl").read_text().splitlines()]


def digest(value):
    return hashlib.sha256(value).hexdigest()


def same(found, want, at):
    """A value is what TFDS decodes: by dtype, shape and digest."""
    if want is None:
        assert found is None, at
    elif isinstance(want, list):
        assert type(found) is list and len(found) == len(want), at
        for index, (one, other) in enumerate(zip(found, want, strict=True)):
            same(one, other, f"{at}[{index}]")
    elif "dtype" not in want:
        assert type(found) is dict and list(found) == sorted(want), at
        for key in want:
            same(found[key], want[key], f"{at}/{key}")
    elif want["dtype"] == "string":
        if want["shape"]:
            assert found.dtype == object and list(found.shape) == want["shape"], at
            assert [digest(string) for string in found.flat] == want["sha256"], at
        else:
            assert type(found) is bytes and digest(found) == want["sha256"], at
    else:
        found = np.asarray(found)
        assert (found.dtype.name, list(found.shape)) == (want["dtype"], want["shape"]), at
        assert digest(np.ascontiguousarray(found).tobytes()) == want["sha256"], at


def row_of(batch, row):
    """One row of a batch."""
    if isinstance(batch, dict):
        return {key: row_of(value, row) for key, value in batch.items()}
    value = batch[row]
    # A row of a masked array is there as a whole, or missing.
    is_missing = value is np.ma.masked or (np.ma.isMaskedArray(value) and value.mask.all())
    return None if is_missing else value


def test_elements_are_what_tfds_decodes(catalog, wanted):
    dataset = prep.open("sink", catalog=catalog)
    assert len(dataset) == ROWS
    for index, want in enumerate(wanted):
        want = {key: value for key, value in want.items() if key not in JPEG}
        element = dataset[index]
        assert sorted(element) == sorted(want)
        for key in want:
            same(element[key], want[key], f"{index} {key}")


def test_batches_hold_the_same_rows(catalog, wanted):
    loader = prep.load("sink", catalog=catalog, batch_size=ROWS, order="source", num_epochs=2, drop_remainder=True)
    for batch in loader:
        for row, want in enumerate(wanted):
            found = row_of(batch, row)
            for key in set(want) - set(JPEG):
                same(found[key], want[key], f"{row} {key}")
        assert type(batch["nested"]["x"]) is dict
        assert np.ma.isMaskedArray(batch["opt_i"]) and batch["opt_i"].dtype == np.int32
        missing = [want["opt_i"] is None for want in wanted]
        assert batch["opt_i"].mask.tolist() == missing
        assert batch["opt_t"].mask.tolist() == [[want["opt_t"] is None] * 2 for want in wanted]
        assert [text is None for text in batch["opt_s"]] == [want["opt_s"] is None for want in wanted]


def test_specs_are_nested_as_the_features_are(catalog):
    spec = prep.open("sink", catalog=catalog).element_spec
    assert spec["nested"]["x"]["z"] == prep.ArraySpec((), np.dtype("int64"))
    assert spec["ragged3"] == prep.ArraySpec((None, None, None), np.dtype("float32"))
    assert spec["objects"]["bbox"] == prep.ArraySpec((None, 4), np.dtype("float32"))
    assert spec["video"] == prep.ArraySpec((None, 8, 6, 3), np.dtype("uint8"))


def test_columns_are_selected_by_their_path(catalog, wanted):
    loader = prep.load("sink", catalog=catalog, batch_size=2, order="source", columns=["nested/x", "seq_i"])
    batch = next(iter(loader))
    assert list(batch) == ["nested", "seq_i"] and list(batch["nested"]) == ["x"] and list(batch["nested"]["x"]) == ["y", "z"]
    same(row_of(batch, 1)["nested"]["x"], wanted[1]["nested"]["x"], "nested/x")
    with pytest.raises(prep.errors.InvalidError, match="nested/q"):
        prep.load("sink", catalog=catalog, batch_size=2, columns=["nested/q"])


def test_jpeg_is_refused_or_stays_a_file(catalog, wanted):
    with pytest.raises(prep.errors.PrepError, match="JPEG"):
        prep.open("photos", catalog=catalog)[0]
    loader = prep.load("photos", catalog=catalog, batch_size=ROWS, order="source", decode=False)
    batch = next(iter(loader))
    for row, want in enumerate(wanted):
        for key in JPEG:
            same(batch[key][row], want[key], key)
