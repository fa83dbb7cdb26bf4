"""Makes the inputs of the formats part, all of the same records: `python formats_data.py FOLDER TEXTS PICTURES`.

    text.tfrecord      TEXTS Examples of about 1 kB: `id` (int64), `scores` (float32[8]), `text` (words, frequent ones frequent), `tokens` (int64[16])
    features.json      their schema
    image.tfrecord     PICTURES records of 60 to 160 kB that do not compress, as JPEGs do not
    text/, image/      the same as ArrayRecord files by Google's writer (one for each codec and group size), bag, Arrow and Lance files
    shards/            1,000 ArrayRecord files of 100 texts each

A package that is missing leaves its files out, and the benchmark says so.
"""
import json
import os
import random
import struct
import sys

CODECS = {"uncompressed": "uncompressed", "zstd": "zstd:3", "snappy": "snappy", "brotli": "brotli:6"}


def variants(kind):
    """The ArrayRecord files: name -> options, for Google's writer and for ours. Pictures do not compress, so two codecs say enough."""
    codecs = CODECS if kind == "text" else {name: CODECS[name] for name in ("uncompressed", "zstd")}
    groups = (1, 256) if kind == "text" else (1,)
    return {f"{name}_g{group}": f"group_size:{group},{options}" for name, options in codecs.items() for group in groups}


def varint(number):
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(tag, data):
    return bytes([tag]) + varint(len(data)) + data


def example(features):
    entries = (field(0x0A, field(0x0A, name.encode()) + field(0x12, value)) for name, value in sorted(features.items()))
    return field(0x0A, b"".join(entries))


def integers(values):
    return field(0x1A, field(0x0A, b"".join(varint(value) for value in values)))


def texts(count):
    draw = random.Random(1)
    words = ["".join(draw.choices("etaoinshrdlucmfwyp", k=draw.randint(2, 9))).encode() for _ in range(20_000)]
    weights = [1 / (rank + 10) for rank in range(len(words))]
    # Choosing by weight is slow: texts are cut from one long one, so that words repeat and no text does.
    pool = b" ".join(draw.choices(words, weights=weights, k=1_000_000))
    for number in range(count):
        start = draw.randrange(len(pool) - 2_000)
        text = pool[start : start + draw.randint(500, 1_100)]
        yield example(
            {
                "id": integers([number]),
                "scores": field(0x12, field(0x0A, struct.pack("<8f", *(draw.random() for _ in range(8))))),
                "text": field(0x0A, field(0x0A, text)),
                "tokens": integers(draw.randrange(32_000) for _ in range(16)),
            }
        )


def pictures(count):
    draw = random.Random(2)
    for _ in range(count):
        yield b"\xff\xd8" + draw.randbytes(draw.randint(60_000, 160_000)) + b"\xff\xd9"


def write_array_record(path, options, records):
    from array_record.python import array_record_module

    writer = array_record_module.ArrayRecordWriter(path, options)
    for record in records:
        writer.write(record)
    writer.close()


def write_bag(path, records):
    import bagz

    with bagz.Writer(path) as writer:
        for record in records:
            writer.write(record)


def table(records):
    import pyarrow

    return pyarrow.table({"r": pyarrow.array(records, pyarrow.large_binary())})


def write_arrow(path, records):
    import pyarrow.ipc

    data = table(records)
    with pyarrow.ipc.new_file(path, data.schema) as writer:
        writer.write_table(data, max_chunksize=1_000)


def write_lance(path, records):
    import lance

    lance.write_dataset(table(records), path, mode="overwrite")


def main():
    import tensorflow as tf

    folder, num_texts, num_pictures = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.makedirs(folder, exist_ok=True)
    missing, facts = {}, {}
    for kind, make, count in (("text", texts, num_texts), ("image", pictures, num_pictures)):
        records = list(make(count))
        facts[kind] = {"records": len(records), "bytes": sum(map(len, records))}
        os.makedirs(os.path.join(folder, kind), exist_ok=True)

        def at(name):
            return os.path.join(folder, kind, name)

        with tf.io.TFRecordWriter(os.path.join(folder, kind + ".tfrecord")) as writer:
            for record in records:
                writer.write(record)
        for name, options in variants(kind).items():
            write_array_record(at(name + ".array_record"), options, records)
        for name, write, file in (
            ("bagz", write_bag, "records.bag"),
            ("bagz", write_bag, "records.bagz"),
            ("pyarrow", write_arrow, "records.arrow"),
            ("lance", write_lance, "records.lance"),
        ):
            try:
                write(at(file), records)
            except ImportError as error:
                missing[name] = str(error)
        if kind == "text":
            shards = os.path.join(folder, "shards")
            os.makedirs(shards, exist_ok=True)
            for shard in range(1_000):
                part = [records[(shard * 100 + row) % len(records)] for row in range(100)]
                write_array_record(os.path.join(shards, f"x-{shard:05}-of-01000.array_record"), "group_size:1,uncompressed", part)
    tensor = "tensorflow_datasets.core.features.tensor_feature.Tensor"
    features = {
        "id": {"pythonClassName": tensor, "tensor": {"dtype": "int64", "encoding": "none", "shape": {}}},
        "scores": {"pythonClassName": tensor, "tensor": {"dtype": "float32", "encoding": "none", "shape": {"dimensions": ["8"]}}},
        "text": {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}},
        "tokens": {"pythonClassName": tensor, "tensor": {"dtype": "int64", "encoding": "none", "shape": {"dimensions": ["16"]}}},
    }
    schema = {"featuresDict": {"features": features}, "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict"}
    with open(os.path.join(folder, "features.json"), "w") as file:
        json.dump(schema, file)
    with open(os.path.join(folder, "facts.json"), "w") as file:
        json.dump({**facts, "missing": missing}, file)


if __name__ == "__main__":
    main()
