"""TFDS opens an `imagenet2012` built from small tars in ILSVRC 2012's layout, and finds what its own builder makes of them."""
import hashlib
import json

import numpy as np
import pytest
import tensorflow_datasets as tfds
from conftest import GOLDEN, Prep

SPLITS = ["train", "validation", "test"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    command = Prep(tmp_path_factory.mktemp("imagenet"))
    command.build("imagenet2012")
    return command.folder("imagenet2012")


@pytest.fixture(scope="module")
def wanted():
    return json.loads((GOLDEN / "imagenet2012/golden.json").read_text())


@pytest.mark.parametrize("split", SPLITS)
def test_data_source_gives_names_labels_and_pictures(folder, wanted, split):
    builder = tfds.builder_from_directory(str(folder))
    positions = wanted["splits"][split]["positions"]
    plain = builder.as_data_source(split=split, decoders={"image": tfds.decode.SkipDecoding()})
    assert len(plain) == len(positions) == builder.info.splits[split].num_examples
    for example, want in zip(plain, positions):
        assert example["file_name"] == want["key"].encode()
        assert example["label"] == want["label"]
        if "jpeg" not in want:
            assert hashlib.sha256(example["image"]).hexdigest() == want["sha256"]
    for example in builder.as_data_source(split=split):
        assert example["image"].dtype == np.uint8 and example["image"].shape[2] == 3


def test_builder_finds_splits_classes_and_keys(folder, wanted):
    builder = tfds.builder_from_directory(str(folder))
    assert (builder.name, str(builder.version)) == ("imagenet2012", "5.1.0")
    assert list(builder.info.splits) == SPLITS
    assert builder.info.features["label"].num_classes == 1000
    assert builder.info.features["label"].names[:2] == ["n01440764", "n01443537"]
    assert builder.info.supervised_keys == ("image", "label")
    assert json.loads((folder / "features.json").read_text()) == json.loads(wanted["files"]["features.json"])
