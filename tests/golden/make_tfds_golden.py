#!/usr/bin/env python3
"""Notes what TFDS's own builders make of the archives in this folder: `tfds/NAME.json`, one file a dataset.

    python3 make_tfds_golden.py            writes them
    python3 make_tfds_golden.py --check    builds again and compares, but writes nothing

Needs tensorflow-cpu, tensorflow-datasets and importlib_resources. The builder classes are TFDS's; only their download
addresses point at a local server, and MNIST's number of examples is that of the short files. Fields of the output:

    versions                         of the programs
    files                            text of features.json, dataset_info.json and *.labels.txt
    splits.NAME.shards[]             file name, records
    splits.NAME.positions[]          in the order of the shards: key (the builder's, as decimal text), label(s), id, and
                                     sha256 of the decoded pixels (C order: height, width, channel)
    splits.NAME.png_bytes            sum of the encoded images
    splits.NAME.instructions         split string -> [[file name, skip, take], ...] as TFDS reads it (take -1: to the end)
"""
import hashlib
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow_datasets.image_classification import cifar, mnist

import common

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = ["cifar10", "cifar100", "mnist", "fashion_mnist", "kmnist"]
SUBSPLITS = ["{}[:30%]", "{}[30%:]", "{}[33%:67%]", "{}[-10%:]", "{}[7:21]", "{}[:-5]", "{}[-5:]", "{}[25%:75%]", "{}[:1%]"]


def redirect(url):
    """Points the builders' addresses at `url`."""
    for builder, folder in ((cifar.Cifar10, "cifar10"), (cifar.Cifar100, "cifar100")):
        original = builder.__dict__["_cifar_info"].fget

        def moved(self, original=original, folder=folder):
            info = original(self)
            return info._replace(url=f"{url}/{folder}/{os.path.basename(info.url)}")

        builder._cifar_info = property(moved)
    mnist.MNIST.URL, mnist.FashionMNIST.URL, mnist.KMNIST.URL = (f"{url}/{n}/" for n in ("mnist", "fashion_mnist", "kmnist"))
    mnist._TRAIN_EXAMPLES, mnist._TEST_EXAMPLES = 120, 40


def keyed(builder_class, keys):
    """Notes the key of each example as the builder yields it, by pixels' digest and label."""
    original = builder_class._generate_examples

    def generate(self, *args, **kwargs):
        for key, example in original(self, *args, **kwargs):
            digest = hashlib.sha256(example["image"].tobytes()).hexdigest()
            keys.setdefault((digest, int(example["label"])), []).append(str(key))
            yield key, example

    return original, generate


def golden(name, out):
    builder = tfds.builder(name, data_dir=out, file_format="array_record")
    keys = {}
    builder_class = type(builder)
    original, generate = keyed(builder_class, keys)
    builder_class._generate_examples = generate
    result = common.prepare(builder)
    builder_class._generate_examples = original
    for split, info in builder.info.splits.items():
        source = builder.as_data_source(split=split)
        positions, png_bytes = [], 0
        for example in source:
            pixels = example["image"]
            digest = hashlib.sha256(pixels.tobytes()).hexdigest()
            (key,) = keys[digest, int(example["label"])]
            row = {"key": key, "label": int(example["label"])}
            if "coarse_label" in example:
                row["coarse_label"] = int(example["coarse_label"])
            if "id" in example:
                row["id"] = example["id"].decode() if isinstance(example["id"], bytes) else str(example["id"])
            row["sha256"] = digest
            positions.append(row)
        shards, contents = common.shards(builder, info)
        for record in (record for shard in contents for record in shard):
            feature = tf.train.Example.FromString(record).features.feature
            png_bytes += len(feature["image"].bytes_list.value[0])
        instructions = {}
        for pattern in SUBSPLITS:
            text = pattern.format(split)
            # `as_data_source` and tf.data both follow these instructions.
            part = builder.info.splits[text]
            instructions[text] = [[os.path.basename(i.filename), i.skip, i.take] for i in part.file_instructions]
        result["splits"][split] = {
            "shards": shards,
            "png_bytes": png_bytes,
            "instructions": instructions,
            "positions": positions,
        }
    return result


def as_text(value):
    """Indented JSON, but with one position a line."""
    rows = []
    for line in json.dumps(value, indent=1, ensure_ascii=False).split("\n"):
        deep = line.startswith("     ") and not line.startswith("     }")
        if deep or (rows and line.startswith("    }") and rows[-1].startswith("    {")):
            rows[-1] += (" " if not rows[-1].endswith("{") else "") + line.strip()
        else:
            rows.append(line)
    return "\n".join(rows) + "\n"


def main():
    cases = [(os.path.join(HERE, "tfds", name + ".json"), (name,)) for name in NAMES]
    common.run(HERE, redirect, cases, golden, as_text, check=sys.argv[1:] == ["--check"])


if __name__ == "__main__":
    main()
