"""TFDS reads what our encoder writes, for every connector: the folder that the example program `tfds_folder` makes."""
import importlib.util
import io
import os
import subprocess

import numpy as np
import pytest
import tensorflow_datasets as tfds
from conftest import array
from PIL import Image

ROWS = 5
NUMBERS = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"]
# TFDS decodes 16 bits with OpenCV only, which is not installed.
UNDECODED = {"image16"}
# TFDS makes these connectors with TensorFlow only.
LEFT_OUT = [] if importlib.util.find_spec("tensorflow") else ["audio", "video"]


def counting(dtype, shape, first):
    """Numbers that count up, as the program makes them."""
    numbers = np.arange(np.prod(shape, dtype=int)) + first
    if dtype == "float32":
        numbers = numbers / 2
    elif dtype in ("uint16", "int16"):
        numbers = numbers * 100
    return numbers.astype(dtype).reshape(shape)


def ints(length, dtype):
    return np.array([at * 300 - 1 for at in range(length)], dtype)


def wanted(row):
    """The values of a row: arrays, and plain numbers where TFDS gives those."""
    bbox = np.array([0, 0.25, 0.5, 1], np.float32)
    values = {f"s_{dtype}": row + (0.5 if "float" in dtype else 1) for dtype in NUMBERS}
    odd = row % 2 == 1
    values |= {
        "s_bool": odd,
        "s_string": f"s{row}".encode(),
        "t_fixed": np.stack([ints(3, np.int32)] * 2),
        "t_varying": counting("float32", (row, 2), row),
        "t_bytes": np.array([0.1, 1e300, -0.0]),
        "t_zlib": counting("uint16", (row, 2), row),
        "t_strings": np.array([b"a" * row, b""], object),
        "text": f"text \u00e9 {row}".encode(),
        "label": row % 2,
        "image": counting("uint8", (2, row + 1, 3), row),
        "image16": counting("uint16", (2, 2, 1), row),
        "image_float": counting("float32", (2, 2, 1), row),
        "mask": np.array([0, 1, 1, row % 2], np.uint8).reshape(2, 2, 1),
        "video": counting("uint8", (row, 2, 2, 3), row),
        "audio": counting("int16", (10 * row,), row),
        "bbox": bbox,
        "seq": ints(row, np.int32),
        "seq_fixed": np.array([0.5, row], np.float32),
        "seq_text": np.array([f"t{at}".encode() for at in range(row)], object),
        "objects": {"bbox": np.array([bbox] * row).reshape(row, 4), "label": np.arange(row) % 2},
        "ragged": [ints(at, np.int64) for at in range(row)],
        "ragged_text": [np.array([b"r" * at] * at, object) for at in range(row)],
        "nested": {"a": -row, "b": {"c": f"c{row}".encode()}},
        "steps": [{"number": at, "picture": counting("uint8", (1, 2, 3), at)} for at in range(row)],
        "optional": row if odd else None,
        "optional_tensor": counting("float32", (2,), row) if odd else None,
        "translation": {"de": f"de {row}".encode(), "en": f"en {row}".encode()},
        "translations": {
            "language": np.array([b"de", b"en", b"en"], object),
            "translation": np.array([b"eins", b"one", b"two"], object),
        },
    }
    return {name: value for name, value in values.items() if name not in LEFT_OUT}


def same(found, want, at):
    """Equal values; an array and a list of its rows are equal, too."""
    if want is None:
        assert found is None, at
    elif isinstance(want, dict):
        assert set(found) == set(want), at
        for key in want:
            same(found[key], want[key], f"{at}/{key}")
    elif isinstance(want, list):
        assert len(found) == len(want), at
        for index, value in enumerate(want):
            same(found[index], value, f"{at}[{index}]")
    elif isinstance(want, np.ndarray):
        if len(want) == 0:
            assert len(found) == 0, at
            return
        found = np.asarray(found, want.dtype if want.dtype == object else None)
        assert found.shape == want.shape and found.dtype == want.dtype, at
        np.testing.assert_array_equal(found, want, at)
    else:
        assert found == want, at


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder that the program writes, in the layout that TFDS wants."""
    program = os.environ.get("PREP_TFDS_FOLDER")
    if not program:
        pytest.skip("set PREP_TFDS_FOLDER to the example program `tfds_folder` of prep-formats")
    folder = tmp_path_factory.mktemp("data") / "every_feature" / "1.0.0"
    subprocess.run([program, folder, *LEFT_OUT], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def builder(folder):
    return tfds.builder_from_directory(str(folder))


def test_tfds_decodes_every_connector(builder):
    decoders = {name: tfds.decode.SkipDecoding() for name in UNDECODED}
    source = builder.as_data_source("train", decoders=decoders)
    assert len(source) == ROWS
    for row in range(ROWS):
        example = dict(source[row])
        want = wanted(row)
        if row % 2 == 0:
            # What is missing is left out, or `None`.
            for name in ("optional", "optional_tensor"):
                example.setdefault(name, None)
        example["steps"] = [dict(step) for step in example["steps"]]
        example["image16"] = np.asarray(Image.open(io.BytesIO(example["image16"]))).astype(np.uint16)[..., None]
        same(example, want, f"row {row}: ")


def test_tfds_describes_the_features_in_the_same_words(folder, builder, tmp_path):
    features = builder.info.features
    assert features["label"].names == ["cat", "dog"]
    assert features["objects"]["label"].names == ["cat", "dog"]
    assert features["mask"].names == ["cat", "dog"]
    if "audio" in features:
        assert features["audio"].sample_rate == 16000
    assert features["translations"].languages == ["de", "en"]
    assert builder.info.splits["train"].num_examples == ROWS
    # Written again by TFDS, every file of the schema has the same bytes.
    features.save_config(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_text() == (folder / path.name).read_text(), path.name
    assert {path.name for path in tmp_path.iterdir()} == {
        path.name for path in folder.iterdir() if path.name not in ("dataset_info.json",) and "array_record" not in path.name
    }


def test_we_decode_what_was_written(command, folder):
    rows = command.json("cat", folder, "--split", "train")
    assert [row["index"] for row in rows] == list(range(ROWS))

    def value(found):
        if found is None:
            return None
        if isinstance(found, list):
            return [value(element) for element in found]
        if "dtype" not in found:
            return {key: value(inner) for key, inner in found.items()}
        if isinstance(found["data"], list):
            strings = [array({"dtype": "string", "shape": [], "data": data}) for data in found["data"]]
            return np.array(strings, object).reshape(found["shape"])
        decoded = array(found)
        return decoded if isinstance(decoded, bytes) or decoded.shape else decoded[()]

    for row in rows:
        want = wanted(row["index"])
        steps = want.pop("steps")
        features = {key: value(found) for key, found in row["features"].items()}
        found = features.pop("steps")
        assert found["number"].tolist() == [step["number"] for step in steps]
        for picture, step in zip(found["picture"], steps):
            np.testing.assert_array_equal(picture, step["picture"])
        same(features, want, f"row {row['index']}: ")
