"""TFDS reads what we build, and finds what it would have built itself."""
import gzip
import json
import tarfile

import numpy as np
import pytest
import tensorflow_datasets as tfds
from conftest import DATASETS, GOLDEN, pixels_digest

SPLITS = ["train", "test"]
each_dataset = pytest.mark.parametrize("name", DATASETS)
each_split = pytest.mark.parametrize("split", SPLITS)


def source_records(name, split):
    """Labels and pixels as they lie in the source files: [(label, coarse label or None, image), ...] by key."""
    if name.startswith("cifar"):
        label_bytes = 2 if name == "cifar100" else 1
        members = {
            ("cifar10", "train"): [f"data_batch_{i}.bin" for i in range(1, 6)],
            ("cifar10", "test"): ["test_batch.bin"],
            ("cifar100", "train"): ["train.bin"],
            ("cifar100", "test"): ["test.bin"],
        }[name, split]
        (path,) = (GOLDEN / name).glob("*.tar.gz")
        with tarfile.open(path) as tar:
            data = {member.name.split("/")[-1]: tar.extractfile(member).read() for member in tar if member.isfile()}
        rows = np.frombuffer(b"".join(data[member] for member in members), np.uint8).reshape(-1, label_bytes + 3072)
        images = rows[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        coarse = rows[:, 0].tolist() if label_bytes == 2 else [None] * len(rows)
        return list(zip(rows[:, label_bytes - 1].tolist(), coarse, images))
    kind = {"train": "train", "test": "t10k"}[split]
    images = np.frombuffer(gzip.open(GOLDEN / name / f"{kind}-images-idx3-ubyte.gz").read(), np.uint8, offset=16)
    labels = np.frombuffer(gzip.open(GOLDEN / name / f"{kind}-labels-idx1-ubyte.gz").read(), np.uint8, offset=8)
    return [(int(label), None, image) for label, image in zip(labels, images.reshape(-1, 28, 28, 1))]


@each_dataset
@each_split
def test_data_source_gives_what_tfds_itself_builds(prep, golden, name, split):
    source = tfds.data_source(name, split=split, data_dir=prep.folder(name).parent.parent)
    expected = golden[name]["splits"][split]["positions"]
    assert len(source) == len(expected)
    for example, want in zip(source, expected):
        assert example["image"].dtype == np.uint8
        assert pixels_digest(example["image"]) == want["sha256"]
        assert example["label"] == want["label"]
        assert set(example) == set(want) - {"key", "sha256"} | {"image"}
        if "coarse_label" in want:
            assert example["coarse_label"] == want["coarse_label"]
        if "id" in want:
            assert example["id"] == want["id"].encode()


@each_dataset
@each_split
def test_data_source_gives_the_source_bytes(prep, golden, name, split):
    source = tfds.builder_from_directory(str(prep.folder(name))).as_data_source(split=split)
    records = source_records(name, split)
    assert len(source) == len(records)
    for example, want in zip(source, golden[name]["splits"][split]["positions"]):
        label, coarse, image = records[int(want["key"])]
        assert example["label"] == label
        assert example.get("coarse_label") == coarse
        np.testing.assert_array_equal(example["image"], image)


@each_dataset
def test_builder_finds_versions_shards_and_label_names(prep, golden, name):
    builder = tfds.builder_from_directory(str(prep.folder(name)))
    want = golden[name]
    assert str(builder.version) == want["version"]
    assert builder.name == name
    for split in SPLITS:
        info = builder.info.splits[split]
        assert list(info.shard_lengths) == [shard["records"] for shard in want["splits"][split]["shards"]]
        assert [path.rsplit("/")[-1] for path in info.filenames] == [shard["path"] for shard in want["splits"][split]["shards"]]
        assert info.num_examples == len(want["splits"][split]["positions"])
    for file, text in want["files"].items():
        if file.endswith(".labels.txt"):
            assert builder.info.features[file.removesuffix(".labels.txt")].names == text.splitlines()
    assert builder.info.supervised_keys == ("image", "label")


@each_dataset
def test_json_files_say_what_those_of_tfds_say(prep, golden, name):
    folder = prep.folder(name)
    assert json.loads((folder / "features.json").read_text()) == json.loads(golden[name]["files"]["features.json"])
    for file, text in golden[name]["files"].items():
        if file.endswith(".labels.txt"):
            assert (folder / file).read_text() == text
    ours = json.loads((folder / "dataset_info.json").read_text())
    theirs = json.loads(golden[name]["files"]["dataset_info.json"])
    for info in (ours, theirs):
        for split in info["splits"]:
            # Depends on the PNG encoder.
            assert int(split.pop("numBytes")) > 0
    assert ours == theirs


@each_dataset
@each_split
def test_cat_gives_the_tensors_that_tfds_gives(prep, golden, name, split):
    examples = prep.examples(name, split)
    expected = golden[name]["splits"][split]["positions"]
    assert len(examples) == len(expected)
    for example, want in zip(examples, expected):
        assert pixels_digest(example["image"]) == want["sha256"]
        assert example["label"].dtype == np.int64 and example["label"].shape == ()
        assert int(example["label"]) == want["label"]
        if "id" in want:
            assert example["id"] == want["id"].encode()


@each_split
def test_more_shards_keep_the_positions(sharded, golden, split):
    builder = tfds.builder_from_directory(str(sharded.folder("cifar10")))
    lengths = list(builder.info.splits[split].shard_lengths)
    n = sum(lengths)
    cuts = [round(n * i / 7) for i in range(8)]  # round half to even, as TFDS cuts
    assert lengths == [cuts[i + 1] - cuts[i] for i in range(7)]
    found = [pixels_digest(example["image"]) for example in builder.as_data_source(split=split)]
    assert found == [want["sha256"] for want in golden["cifar10"]["splits"][split]["positions"]]


@each_dataset
def test_images_are_as_small_as_tfds_makes_them(prep, golden, name):
    for split in SPLITS:
        # Shards are the sum of records and of a frame around each, so the features' bytes are compared.
        ours = sum(len(image) for image in encoded_images(prep, name, split))
        theirs = golden[name]["splits"][split]["png_bytes"]
        assert ours <= theirs * 1.05, f"{split}: {ours} bytes of PNG, TFDS has {theirs}"


def encoded_images(prep, name, split):
    builder = tfds.builder_from_directory(str(prep.folder(name)))
    source = builder.as_data_source(split=split, decoders={"image": tfds.decode.SkipDecoding()})
    return [example["image"] for example in source]


PATTERNS = [
    "{}[:30%]", "{}[30%:]", "{}[33%:67%]", "{}[-10%:]", "{}[7:21]", "{}[:-5]", "{}[-5:]", "{}[25%:75%]", "{}[:1%]", "{}",
    "{}[50:]", "{}[:3]", "{}[10%:10%]",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@each_split
@pytest.mark.parametrize("shards", [1, 7])
def test_split_strings_select_what_tfds_selects(prep, sharded, golden, pattern, split, shards):
    command = prep if shards == 1 else sharded
    text = pattern.format(split)
    builder = tfds.builder_from_directory(str(command.folder("cifar10")))
    wanted = tfds_positions(builder, split, text)
    if shards == 1 and text in golden["cifar10"]["splits"][split]["instructions"]:
        assert wanted == golden_positions(golden["cifar10"]["splits"][split], text)
    if not wanted:
        command.run("load", "cifar10", "--split", text, "--order", "source", "--indices")
        return
    found = [i for batch in command.indices("cifar10", "--split", text, "--order", "source", "--batch", "64") for i in batch]
    assert found == wanted


def tfds_positions(builder, split, text):
    """The positions in `split` that TFDS reads for a split string."""
    info = builder.info.splits[split]
    starts = {}
    start = 0
    for path, length in zip(info.filenames, info.shard_lengths):
        starts[path.rsplit("/")[-1]] = (start, length)
        start += length
    positions = []
    for instruction in builder.info.splits[text].file_instructions:
        start, length = starts[instruction.filename.rsplit("/")[-1]]
        take = length - instruction.skip if instruction.take == -1 else instruction.take
        positions.extend(range(start + instruction.skip, start + instruction.skip + take))
    return positions


def golden_positions(golden_split, text):
    positions, start = [], 0
    for shard in golden_split["shards"]:
        for path, skip, take in golden_split["instructions"][text]:
            if path == shard["path"]:
                positions.extend(range(start + skip, start + (shard["records"] if take == -1 else skip + take)))
        start += shard["records"]
    return positions
