"""Writes `ragged/`: what TFDS makes of tensors whose sizes vary, by TFDS's own encoder. Needs tensorflow-datasets, tensorflow-cpu, array_record.

    python make_ragged.py

Three datasets, as TFDS folders without statistics: `one_size` has tensors of one varying dimension, `two_sizes` of two (which TFDS stores
only with an encoding), `nested` has sequences, sequences of sequences, features in features, and features that may be missing. The values are
those of `rows()`, which the tests import.
"""

import pathlib
import shutil

import numpy as np

HERE = pathlib.Path(__file__).parent
COUNT = 11


def rows(name):
    """The examples of a dataset."""
    for i in range(COUNT):
        if name == "one_size":
            length = (0, 1, 5, 2, 0, 3, 40, 1, 2, 3, 4)[i]
            yield {
                "id": np.int64(i),
                "text": ("word " * i).encode(),
                "tokens": (np.arange(length, dtype=np.int64) - 2) * 1_000_003 * (i + 1),
                "track": (np.arange(length * 3, dtype=np.int16).reshape(length, 3) - 4) * np.int16(i),
                "curve": np.linspace(-1, i, 2 * length, dtype=np.float32).reshape(2, length),
                "mask": np.arange(length) % 3 == 0,
            }
        elif name == "nested":
            lengths = [(i * 5 + j) % 4 for j in range(i % 4)]
            yield {
                "id": np.int64(i),
                "ints": [np.arange(length, dtype=np.int32) * (i + 1) - 3 for length in lengths],
                "deep": [[np.arange(length, dtype=np.int64) + i for length in lengths[:count]] for count in range(i % 3)],
                "words": np.array([b"w%d" % j * j for j in range(i % 5)], object),
                "sentences": [np.array([b"%d-%d" % (i, j)] * length, object) for j, length in enumerate(lengths)],
                "boxes": {
                    "corners": (np.arange(len(lengths) * 4, dtype=np.float32).reshape(-1, 4) + 1) / 100,
                    "name": np.array([b"box %d" % j for j in range(len(lengths))], object),
                },
                "inner": {"flag": np.bool_(i % 2), "far": {"vector": np.arange(3, dtype=np.uint8) * i}},
                "maybe": None if i % 3 == 0 else np.int32(i),
                "maybe_text": None if i % 3 == 1 else b"text %d" % i,
            }
        else:
            height, width = (i * 3) % 5, (i * 7 + 2) % 6
            yield {
                "id": np.int64(i),
                "grid": np.linspace(-i, i, height * width * 2, dtype=np.float32).reshape(height, width, 2),
                "map": np.arange(height * width, dtype=np.int32).reshape(height, width) * -(i + 1),
                "wide": np.arange(width * 2 * height, dtype=np.float64).reshape(width, 2, height) / 7,
            }


def features(name):
    import tensorflow_datasets as tfds

    tensor = tfds.features.Tensor
    if name == "one_size":
        kinds = {
            "text": tfds.features.Text(),
            "tokens": tensor(shape=(None,), dtype=np.int64),
            "track": tensor(shape=(None, 3), dtype=np.int16),
            "curve": tensor(shape=(2, None), dtype=np.float32),
            "mask": tensor(shape=(None,), dtype=np.bool_),
        }
    elif name == "nested":
        sequence, scalar, text = tfds.features.Sequence, tfds.features.Scalar, tfds.features.Text
        kinds = {
            "ints": sequence(sequence(np.int32)),
            "deep": sequence(sequence(sequence(np.int64))),
            "words": sequence(text()),
            "sentences": sequence(sequence(text())),
            "boxes": sequence({"corners": tensor(shape=(4,), dtype=np.float32), "name": text()}),
            "inner": {"flag": scalar(np.bool_), "far": {"vector": tensor(shape=(3,), dtype=np.uint8)}},
            "maybe": scalar(np.int32, optional=True),
            "maybe_text": scalar(np.str_, optional=True),
        }
    else:
        kinds = {
            "grid": tensor(shape=(None, None, 2), dtype=np.float32, encoding="bytes"),
            "map": tensor(shape=(None, None), dtype=np.int32, encoding="zlib"),
            "wide": tensor(shape=(None, 2, None), dtype=np.float64, encoding="zlib"),
        }
    return tfds.features.FeaturesDict({"id": tfds.features.Scalar(np.int64), **kinds})


def compare(found, wanted):
    if isinstance(wanted, dict):
        for key in wanted:
            compare(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(found.to_list()) == len(wanted) and found.to_list() == listed(wanted)
    elif wanted is None:
        # TensorFlow has no missing values; TFDS gives these.
        assert found.numpy() in (b"", np.iinfo(np.int32).min)
    else:
        np.testing.assert_array_equal(found.numpy(), wanted)


def listed(value):
    return [listed(item) for item in value] if isinstance(value, list) else value.tolist()


def main():
    from array_record.python import array_record_module

    for name in ("one_size", "two_sizes", "nested"):
        folder = HERE / "ragged" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        schema = features(name)
        schema.save_config(str(folder))
        records = [schema.serialize_example(row) for row in rows(name)]
        path = folder / f"{name}-train.array_record-00000-of-00001"
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
        for record in records:
            writer.write(record)
        writer.close()
        # What TFDS itself reads back: by TensorFlow, as its NumPy path fails on empty tensors of two varying dimensions.
        for record, row in zip(records, rows(name), strict=True):
            compare(schema.deserialize_example(record), row)


if __name__ == "__main__":
    main()
