"""`prep convert` beside Google's array_record and TFDS."""
import gzip
import json
import shutil

import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordReader
from conftest import GOLDEN


def google(path):
    """The records that Google's reader finds in a file."""
    reader = ArrayRecordReader(str(path))
    try:
        return reader.read_all() if reader.num_records() else []
    finally:
        reader.close()


def shards(folder):
    return sorted(path for path in folder.iterdir() if ".array_record-" in path.name)


@pytest.mark.parametrize("count", [1, 3, 50])
@pytest.mark.parametrize("options", ["group_size:1,uncompressed", "group_size:1,zstd:3", "group_size:7,transpose:true,brotli:5"])
def test_array_record_reads_the_same_records(command, tmp_path, count, options):
    names = ["mixed_none.tfrecord", "mixed_gzip.tfrecord.gz", "mixed_zlib.tfrecord.zlib"]
    inputs = [GOLDEN / "tfrecord" / name for name in names]
    out = tmp_path / "out"
    command.run("convert", *inputs, out, "--shards", count, "--options", options, "--name", "mixed")
    paths = shards(out)
    assert [path.name for path in paths] == [f"mixed.array_record-{i:05}-of-{count:05}" for i in range(count)]
    found = [record for path in paths for record in google(path)]
    wanted = [record for path in inputs for record in command.records(path)]
    assert found == wanted and len(found) == 120


def test_tfds_opens_a_converted_folder(command, prep, tmp_path):
    # TFDS's writer for TFRecord files is TensorFlow's; the framing is so simple that ours stands in for it.
    built = prep.folder("cifar10")
    source = tmp_path / "source" / "cifar10" / built.name
    source.mkdir(parents=True)
    for path in built.iterdir():
        if ".array_record-" in path.name:
            target = source / path.name.replace(".array_record-", ".tfrecord-")
            # A gzip of frames would do as well: the kind is told by the content.
            target.write_bytes(frames(prep.records(path)))
        elif path.name != "prep_manifest.json":
            shutil.copy(path, source / path.name)
    info = json.loads((source / "dataset_info.json").read_text())
    info["fileFormat"] = "tfrecord"
    (source / "dataset_info.json").write_text(json.dumps(info))
    out = tmp_path / "out" / "cifar10" / built.name
    command.run("convert", source, out)
    builder = tfds.builder_from_directory(str(out))
    assert builder.info.file_format.value == "array_record"
    for split in ["train", "test"]:
        ours, before = builder.as_data_source(split=split), tfds.builder_from_directory(str(built)).as_data_source(split=split)
        assert len(ours) == len(before) > 0
        for one, other in zip(ours, before):
            assert one["label"] == other["label"] and (one["image"] == other["image"]).all()


def test_a_shuffle_keeps_the_records(command, tmp_path):
    path = GOLDEN / "tfrecord" / "mixed_none.tfrecord"
    for seed, name in [(1, "a"), (1, "b"), (2, "c")]:
        command.run("convert", path, tmp_path / name, "--order", f"shuffle:{seed}", "--shards", 4, "--workers", 1 + seed)
    found = {name: [record for shard in shards(tmp_path / name) for record in google(shard)] for name in "abc"}
    wanted = command.records(path)
    assert found["a"] == found["b"] != found["c"]
    assert sorted(found["a"]) == sorted(found["c"]) == sorted(wanted)
    assert found["a"] != wanted


def frames(records):
    """A TFRecord file."""
    import struct

    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)

    def masked(data):
        crc = 0xFFFFFFFF
        for byte in data:
            crc = table[(crc ^ byte) & 255] ^ crc >> 8
        crc ^= 0xFFFFFFFF
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    out = bytearray()
    for record in records:
        length = struct.pack("<Q", len(record))
        out += length + struct.pack("<I", masked(length)) + record + struct.pack("<I", masked(record))
    return bytes(out)


def test_gzip_is_told_by_content(command, tmp_path):
    path = tmp_path / "named.tfrecord"
    path.write_bytes(gzip.compress(frames([b"one", b"", b"three"])))
    command.run("convert", path, tmp_path / "out")
    assert google(*shards(tmp_path / "out")) == [b"one", b"", b"three"]
