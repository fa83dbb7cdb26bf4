"""What `prep export` makes is read by TFDS, and by pyarrow, pandas and Hugging Face's `datasets`, with a feature of every kind."""
import io
import json
import os
import pathlib
import subprocess
import sys

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets as tfds
from conftest import Prep
from PIL import Image
from test_tfds_features import LEFT_OUT, ROWS, UNDECODED, same, wanted


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The command, with `every_feature` in its catalog, and `all_features` with those that TFDS makes with TensorFlow only."""
    program = os.environ.get("PREP_TFDS_FOLDER")
    if not program:
        pytest.skip("set PREP_TFDS_FOLDER to the example program `tfds_folder` of prep-formats")
    prep = Prep(tmp_path_factory.mktemp("home"))
    for name, left_out in [("every_feature", LEFT_OUT), ("all_features", [])]:
        folder = tmp_path_factory.mktemp(name) / "every_feature" / "1.0.0"
        subprocess.run([program, folder, *left_out], check=True, capture_output=True)
        info = folder / "dataset_info.json"
        info.write_text(info.read_text().replace('"every_feature"', f'"{name}"'))
        for shard in folder.glob("*array_record*"):
            shard.rename(folder / shard.name.replace("every_feature", name))
        prep.run("convert", folder, prep.home / f"converted {name}", "--catalog", prep.home / "catalog", "--shards", 2)
    return prep


@pytest.mark.parametrize("more", [[], ["--shards", 3], ["--copy"]])
def test_tfds_reads_every_feature(home, tmp_path, more):
    home.run("export", "every_feature", tmp_path, "--tfds", *more)
    decoders = {name: tfds.decode.SkipDecoding() for name in UNDECODED}
    from_folder = tfds.builder_from_directory(str(tmp_path / "every_feature" / "1.0.0"))
    by_name = tfds.data_source("every_feature", data_dir=str(tmp_path), split="train", decoders=decoders)
    for source in [from_folder.as_data_source("train", decoders=decoders), by_name]:
        assert len(source) == ROWS
        for row in range(ROWS):
            example = dict(source[row])
            if row % 2 == 0:
                for name in ("optional", "optional_tensor"):
                    example.setdefault(name, None)
            example["steps"] = [dict(step) for step in example["steps"]]
            example["image16"] = np.asarray(Image.open(io.BytesIO(example["image16"]))).astype(np.uint16)[..., None]
            same(example, wanted(row), f"row {row}: ")


def lacking(tmp_path, feature, values):
    """A dataset `mine` of these values of `x`."""
    prep = Prep(tmp_path / "home")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"i": i, "x": x}) + "\n" for i, x in enumerate(values)))
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'format = 1\nname = "mine"\n[[sources]]\npath = "a.jsonl"\n[reader]\nkind = "jsonl"\n[features.x]\n{feature}\n')
    prep.folders["mine"] = pathlib.Path(prep.json("register", recipe)[-1]["path"])
    return prep


@pytest.mark.parametrize(
    "feature, values",
    [
        ('kind = "scalar"\ndtype = "int64"\noptional = true', [1, None, 3]),
        ('kind = "scalar"\ndtype = "float64"\noptional = true', [1.5, None, 3.0]),
        ('kind = "scalar"\ndtype = "bool"\noptional = true', [True, None, False]),
        ('kind = "text"\noptional = true', ["a", None, ""]),
        ('kind = "tensor"\nshape = [2]\ndtype = "int32"\noptional = true', [[1, 2], None, [3, 4]]),
        ('kind = "dict"\nfeatures = { a = { kind = "scalar", dtype = "int64", optional = true } }', [{"a": 1}, {"a": None}, {}]),
    ],
)
def test_tfds_reads_what_is_missing(tmp_path, feature, values):
    prep = lacking(tmp_path, feature, values)
    prep.run("export", "mine", tmp_path / "out", "--tfds")
    source = tfds.data_source("mine", data_dir=str(tmp_path / "out"), split="train")
    found = [row["x"] for row in source]
    for theirs, value in zip(found, values, strict=True):
        if isinstance(value, dict):
            theirs, value = theirs["a"], value.get("a")
        if isinstance(value, list):
            assert list(theirs) == value
        else:
            assert theirs == (value.encode() if isinstance(value, str) else value)


@pytest.mark.parametrize(
    "feature, reason",
    [
        ('shape = [-1]\ndtype = "int64"', "a varying shape"),
        ('shape = [2]\ndtype = "float64"\nencoding = "bytes"', "an encoding"),
    ],
)
def test_what_tfds_cannot_read_for_what_is_missing_is_refused(tmp_path, feature, reason):
    prep = lacking(tmp_path, f'kind = "tensor"\noptional = true\n{feature}', [[1, 2], None])
    failed = prep.run("export", "mine", tmp_path / "out", "--tfds", code=1)
    assert f"TFDS cannot read the feature `x`, which may be missing and has {reason}" in failed.stderr
    assert "--parquet" in failed.stderr and not (tmp_path / "out").exists()
    # The version itself is such a folder: TFDS does not read it, so the refusal is no whim.
    with pytest.raises(Exception):
        list(tfds.builder_from_directory(str(prep.folder("mine"))).as_data_source("train"))
    prep.run("export", "mine", tmp_path / "out", "--parquet")
    rows = pq.read_table(tmp_path / "out" / "data").to_pylist()
    assert [row["x"] for row in rows] == [[1, 2], None]


def test_tfds_reads_parts_shards_and_another_format(home, tmp_path):
    prep = Prep(tmp_path / "home")
    prep.build("cifar10", "--shards", 3)
    built = tfds.builder_from_directory(str(prep.folder("cifar10")))
    prep.run("export", "cifar10", tmp_path / "out", "--tfds", "--split", "train[5:50]", "--split", "test", "--shards", 2)
    made = tfds.data_source("cifar10", data_dir=str(tmp_path / "out"))
    assert len(made["train"]) == 45
    for split, first in [("train", 5), ("test", 0)]:
        before = built.as_data_source(split)
        for row in range(len(made[split])):
            same(made[split][row], before[first + row], f"{split} {row}")
    # TFDS opens TFRecord files with TensorFlow only; what it says of them needs none.
    prep.run("export", "cifar10", tmp_path / "records", "--tfds", "--file-format", "tfrecord")
    folder = tmp_path / "records" / "cifar10" / prep.folder("cifar10").name
    info = tfds.builder_from_directory(str(folder)).info
    assert info.splits["train"].num_shards == 3 and info.file_format.value == "tfrecord"
    assert info.splits["train"].num_examples == built.info.splits["train"].num_examples
    assert info.features["label"].names == built.info.features["label"].names
    for path in map(str, info.splits["train"].filepaths):
        theirs = prep.folder("cifar10") / path.split("/")[-1].replace("tfrecord", "array_record")
        assert prep.records(path) == prep.records(theirs)


def table_value(name, want):
    """A value of `wanted` as pyarrow gives it."""
    if name == "s_bool":
        return bool(want)
    if name in ("image", "image16", "image_float", "mask"):
        return want
    if isinstance(want, dict) and name == "objects":
        return [{key: table_value("", values[at]) for key, values in want.items()} for at in range(len(want["label"]))]
    if isinstance(want, dict):
        return {key: table_value(key, value) for key, value in want.items()}
    if isinstance(want, bytes):
        return want.decode()
    if isinstance(want, (np.ndarray, list, tuple)):
        return [table_value("", value) for value in want]
    return want.item() if isinstance(want, np.generic) else want


def pixels(data, like):
    """The pixels of a picture's file, as an array like another one."""
    found = np.asarray(Image.open(io.BytesIO(data)))
    if like.dtype == np.float32:
        return np.ascontiguousarray(found).view(np.float32)
    return found.astype(like.dtype).reshape(like.shape)


def frame(path):
    """The rows of a file as pandas reads it. In a process of its own: `datasets` gives pandas a type for its arrays that pandas 3 cannot use."""
    columns = ["s_uint8", "text", "label", "optional", "seq", "t_varying", "ragged", "objects"]
    program = (
        "import sys, pandas; frame = pandas.read_parquet(sys.argv[1])[sys.argv[2:]]; "
        "print(frame.to_json(orient='records'))"
    )
    done = subprocess.run([sys.executable, "-c", program, path, *columns], check=True, capture_output=True)
    return json.loads(done.stdout)


def test_pyarrow_and_pandas_read_every_feature(home, tmp_path):
    home.run("export", "all_features", tmp_path / "out", "--parquet", "--shards", 2)
    paths = sorted((tmp_path / "out" / "data").iterdir())
    assert [path.name for path in paths] == [f"train-0000{i}-of-00002.parquet" for i in range(2)]
    rows = [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
    frames = [row for path in paths for row in frame(path)]
    assert len(rows) == len(frames) == ROWS
    left_out = {"audio": None, "video": None} if LEFT_OUT else {}
    for row, found in enumerate(rows):
        want = wanted(row)
        assert set(found) == set(want) | set(left_out)
        for name in ("image", "image16", "image_float", "mask"):
            assert found[name]["path"] is None
            np.testing.assert_array_equal(pixels(found[name]["bytes"], want[name]), want[name])
        assert [len(frame["bytes"]) > 0 for frame in found["video"]] == [True] * row
        assert len(found["audio"]) == 10 * row
        for at, step in enumerate(found["steps"]):
            picture = want["steps"][at].pop("picture")
            np.testing.assert_array_equal(pixels(step.pop("picture")["bytes"], picture), picture)
        for name in set(want) - {"image", "image16", "image_float", "mask"}:
            assert found[name] == table_value(name, want[name]), f"row {row}: {name}"
        for name in ("s_uint8", "text", "label", "optional", "seq", "t_varying", "ragged", "objects"):
            assert frames[row][name] == table_value(name, want[name]), f"row {row}: {name}"
    columns = pq.ParquetFile(paths[0]).metadata.row_group(0)
    by_path = {columns.column(at).path_in_schema: columns.column(at) for at in range(columns.num_columns)}
    assert by_path["image.bytes"].compression == "UNCOMPRESSED" and by_path["text"].compression == "ZSTD"
    assert by_path["optional"].statistics.null_count > 0


@pytest.mark.parametrize("way", ["folder", "parquet"])
def test_hugging_face_knows_pictures_and_classes(home, tmp_path, way):
    home.run("export", "every_feature", tmp_path / "out", "--parquet", "--shards", 2)
    options = {"cache_dir": str(tmp_path / "cache")}
    if way == "folder":
        found = datasets.load_dataset(str(tmp_path / "out"), **options)
    else:
        found = datasets.load_dataset("parquet", data_dir=str(tmp_path / "out"), **options)
    assert set(found) == {"train"} and len(found["train"]) == ROWS
    rows = found["train"]
    features = rows.features
    assert features["label"] == datasets.ClassLabel(names=["cat", "dog"])
    assert features["mask"] == datasets.Image()
    assert isinstance(features["image"], datasets.Image)
    assert features["t_fixed"] == datasets.Array2D((2, 3), "int32")
    assert features["t_varying"] == datasets.Array2D((None, 2), "float32")
    assert features["translation"] == datasets.Translation(["de", "en"])
    assert features["bbox"] == datasets.List(datasets.Value("float32"), length=4)
    assert features["seq"] == datasets.List(datasets.Value("int32"))
    assert features["objects"] == datasets.List(
        {"bbox": datasets.List(datasets.Value("float32"), length=4), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    for row in range(ROWS):
        example, want = rows[row], wanted(row)
        np.testing.assert_array_equal(np.asarray(example["image"]), want["image"])
        np.testing.assert_array_equal(np.asarray(example["mask"])[..., None], want["mask"])
        assert example["label"] == want["label"] and example["text"] == want["text"].decode()
        np.testing.assert_array_equal(np.array(example["t_varying"], np.float32).reshape(-1, 2), want["t_varying"])
        assert example["optional"] == want["optional"]
        assert example["objects"] == table_value("objects", want["objects"])
        for step, expected in zip(example["steps"], want["steps"]):
            np.testing.assert_array_equal(np.asarray(step["picture"]), expected["picture"])


def test_hugging_face_reads_a_built_in_dataset_with_its_splits(tmp_path):
    prep = Prep(tmp_path / "home")
    prep.build("cifar10")
    prep.run("export", "cifar10", tmp_path / "out", "--parquet", "--shards", 3)
    found = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert set(found) == {"train", "test"}
    names = found["train"].features["label"].names
    assert len(names) == 10 and (names[0], names[9]) == ("airplane", "truck")
    for split in found:
        ours = prep.examples("cifar10", split)
        assert len(ours) == len(found[split])
        for theirs, want in zip(found[split], ours):
            np.testing.assert_array_equal(np.asarray(theirs["image"]), want["image"])
            assert theirs["label"] == int(want["label"]) and theirs["id"] == want["id"].decode()


def test_hugging_face_finds_splits_of_any_name(tmp_path):
    prep = Prep(tmp_path / "home")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"id": i, "t": None if i % 3 else f"t{i}"}) for i in range(40)))
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'format = 1\nname = "mine"\n[[sources]]\npath = "a.jsonl"\n[reader]\nkind = "jsonl"\n[splits]\ndev_small = 0.5\nunlabelled = 0.5\n'
    )
    prep.run("register", recipe)
    prep.run("export", "mine", tmp_path / "out", "--parquet")
    found = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert set(found) == {"dev_small", "unlabelled"}
    rows = sorted((row["id"], row["t"]) for split in found.values() for row in split)
    assert rows == [(i, None if i % 3 else f"t{i}") for i in range(40)]
