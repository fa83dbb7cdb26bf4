"""The input of a language model after MaxText: the real Grain reads, shuffles, shards and packs the texts in our ArrayRecord shards.

    prep infer texts.jsonl -o texts.toml && prep register texts.toml    # a feature `text` is all that is needed
    python maxtext_input.py texts --batch-size 8 --length 256

`grain` sees what any program of it would see: `ArrayRecordDataSource` over files, `tf.train.Example`s as bytes. Only the source is ours, since a
lookup in it costs the same whatever a shard's size; with `--their-source`, it is the one of the package array_record. Needs grain, jax and
tensorflow-datasets, which decodes the examples (without TensorFlow).
"""

import argparse
import pathlib

import grain.python as grain
import jax
import numpy as np
import tensorflow_datasets as tfds
from grain.experimental import FirstFitPackIterDataset

import prep

END_OF_TEXT = 0


class ParseFeatures(grain.MapTransform):
    """A record to its features."""

    def __init__(self, folder):
        self._folder = str(folder)
        self._features = None

    def map(self, record):
        if self._features is None:
            # In each worker process, rather than pickled.
            self._features = tfds.features.FeaturesDict.from_config(self._folder)
        return self._features.deserialize_example_np(record)


class Tokenise(grain.MapTransform):
    """Bytes as tokens 1 to 256, as many as fit, and the end of the text."""

    def __init__(self, length):
        self._length = length

    def map(self, element):
        tokens = np.frombuffer(element["text"], np.uint8).astype(np.int32)[: self._length - 1] + 1
        tokens = np.append(tokens, np.int32(END_OF_TEXT))
        return {"inputs": tokens, "targets": tokens}


class Shift(grain.MapTransform):
    """Each input is the target before it; the first one of a text is the end of the one before."""

    def map(self, element):
        targets, segments, positions = element["targets"], element["targets_segment_ids"], element["targets_positions"]
        inputs = np.concatenate([[END_OF_TEXT], targets[:-1]]).astype(np.int32)
        inputs[positions == 0] = END_OF_TEXT
        return {"inputs": inputs, "targets": targets, "segment_ids": segments, "positions": positions}


def find_data_files(name, split="train", catalog=None):
    """The shards of a split, and the folder with `features.json`."""
    folder = pathlib.Path(prep.open(name, split=split, catalog=catalog).path)
    return sorted(map(str, folder.glob(f"*-{split}.*array_record-*"))), folder


def make_dataset(
    name, *, length=256, batch_size=8, seed=0, num_epochs=None, workers=0, catalog=None, host_index=None, host_count=None, their_source=False
):
    files, folder = find_data_files(name, catalog=catalog)
    source = grain.ArrayRecordDataSource(files) if their_source else prep.ArrayRecordDataSource(files)
    dataset = grain.MapDataset.source(source).shuffle(seed).repeat(num_epochs)
    host_index = jax.process_index() if host_index is None else host_index
    host_count = jax.process_count() if host_count is None else host_count
    dataset = dataset[host_index::host_count].map(ParseFeatures(folder)).map(Tokenise(length))
    packed = FirstFitPackIterDataset(
        dataset.to_iter_dataset(), length_struct={"inputs": length, "targets": length}, num_packing_bins=batch_size, seed=seed
    )
    dataset = packed.map(Shift()).batch(batch_size, drop_remainder=True)
    return dataset.mp_prefetch(grain.MultiprocessingOptions(workers)) if workers else dataset


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of a dataset with a feature `text`")
    parser.add_argument("--catalog", help="default: $PREP_CATALOG")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--their-source", action="store_true")
    arguments = parser.parse_args(words)
    dataset = make_dataset(
        arguments.name,
        length=arguments.length,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        catalog=arguments.catalog,
        their_source=arguments.their_source,
    )
    for number, batch in zip(range(arguments.batches), dataset):
        used = (batch["segment_ids"] > 0).mean()
        print(f"batch {number}: {batch['inputs'].shape[0]} rows of {batch['inputs'].shape[1]} tokens, {used:.0%} of them text")


if __name__ == "__main__":
    main()
