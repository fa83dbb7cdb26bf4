"""Google's ArrayRecord reader and writer on one side, `prep` on the other."""
import hashlib
import os
import random

import pytest
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from conftest import DATASETS

ROUNDS = int(os.environ.get("PREP_INTEROP_ROUNDS", "40"))
BLOCK = 64 * 1024


def google_records(path):
    reader = ArrayRecordReader(str(path))
    try:
        assert reader.ok()
        return reader.read_all() if reader.num_records() else []
    finally:
        reader.close()


def write(path, options, records):
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()


@pytest.mark.parametrize("name", DATASETS)
def test_google_reads_every_shard(prep, name):
    folder = prep.folder(name)
    shards = sorted(folder.glob("*.array_record-*"))
    assert [shard.name for shard in shards] == [f"{name}-{split}.array_record-00000-of-00001" for split in ("test", "train")]
    for shard in shards:
        records = google_records(shard)
        assert records
        assert prep.records(shard) == records


def test_google_reads_single_records_of_our_shards(sharded):
    generator = random.Random(1)
    for shard in sorted(sharded.folder("cifar10").glob("*.array_record-*")):
        records = google_records(shard)
        reader = ArrayRecordReader(str(shard))
        order = list(range(len(records)))
        generator.shuffle(order)
        assert reader.read(order) == [records[i] for i in order]
        assert reader.read(3, 5) == records[3:5]
        reader.seek(2)
        assert reader.read() == records[2]
        reader.close()


def check_equal(command, path, records):
    """`cat --digest`, `cat` over a range and `verify` agree with what was written."""
    rows = command.json("cat", path, "--digest")
    assert rows == [
        {"index": i, "length": len(record), "sha256": hashlib.sha256(record).hexdigest()} for i, record in enumerate(records)
    ]
    (report,) = command.json("verify", path)
    assert report["ok"] is True
    assert report["records"] == len(records)
    assert report["damaged"] == []
    if len(records) > 2:
        a, b = len(records) // 3, len(records) - 1
        rows = command.json("cat", path, "--records", f"{a}..{b}", "--digest")
        assert [row["index"] for row in rows] == list(range(a, b))
        assert [row["sha256"] for row in rows] == [hashlib.sha256(record).hexdigest() for record in records[a:b]]


@pytest.mark.parametrize("codec", ["uncompressed", "zstd", "zstd:1", "zstd:19"])
@pytest.mark.parametrize("group_size", [1, 2, 7, 300])
def test_we_read_what_google_writes(command, tmp_path, codec, group_size):
    generator = random.Random(f"{codec} {group_size}")
    for count in (1, group_size - 1, group_size, group_size + 1, 3 * group_size + 2):
        records = [generator.randbytes(generator.randrange(200)) * generator.randrange(4) for _ in range(count)]
        path = tmp_path / f"{count}.array_record"
        write(path, f"group_size:{group_size},{codec}", records)
        assert google_records(path) == records
        check_equal(command, path, records)


@pytest.mark.parametrize("codec", ["uncompressed", "zstd:3"])
def test_we_read_records_around_block_boundaries(command, tmp_path, codec):
    generator = random.Random(codec)
    lengths = [k * BLOCK + near for k in (1, 2, 3) for near in (-200, -132, -131, -130, -89, -64, -48, -41, -40, -39, -24, -1, 0, 1, 24, 40)]
    for group_size in (1, 3):
        generator.shuffle(lengths)
        records = [generator.randbytes(length) for length in lengths]
        path = tmp_path / f"{group_size}.array_record"
        write(path, f"group_size:{group_size},{codec}", records)
        check_equal(command, path, records)


def test_first_records_of_every_length_that_ends_near_a_block(command, tmp_path):
    # What follows the first record starts at each of 120 offsets around the first block boundary.
    generator = random.Random(3)
    for length in range(BLOCK - 230, BLOCK - 110, 5):
        records = [generator.randbytes(length), b"after", b"", generator.randbytes(70_000)]
        path = tmp_path / "file.array_record"
        write(path, "group_size:1,uncompressed", records)
        check_equal(command, path, records)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_we_read_random_files(command, tmp_path, seed):
    generator = random.Random(seed)
    group_size = generator.choice([1, 1, generator.randrange(1, 301)])
    codec = generator.choice(["uncompressed", "zstd", f"zstd:{generator.randrange(1, 20)}", "zstd,window_log:20"])
    options = f"group_size:{group_size},{codec}" + generator.choice(["", ",pad_to_block_boundary:true"])
    if generator.random() < 0.5:
        lengths = [generator.choice([0, 1, 3, generator.randrange(3000)]) for _ in range(generator.randrange(1, 900))]
    else:
        lengths = [max(0, generator.randrange(1, 4) * BLOCK + generator.randrange(-300, 300)) for _ in range(generator.randrange(1, 12))]
    record = generator.choice([generator.randbytes, lambda n: (b"pattern %d " % n * (n // 8 + 1))[:n]])
    records = [record(length) for length in lengths]
    path = tmp_path / "file.array_record"
    write(path, options, records)
    assert google_records(path) == records
    check_equal(command, path, records)


def test_a_flipped_bit_is_found_by_both(command, tmp_path):
    generator = random.Random(5)
    records = [generator.randbytes(1000) for _ in range(50)]
    path = tmp_path / "file.array_record"
    write(path, "group_size:1,uncompressed", records)
    data = bytearray(path.read_bytes())
    # Inside a record: found by its content, so that the test does not depend on the layout.
    at = data.index(records[20]) + 500
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception):
        google_records(path)
    (report,) = command.json("verify", path, code=1)
    assert report["ok"] is False
    assert [damage["records"] for damage in report["damaged"]] == [[20, 21]]
    rows = command.json("cat", path, "--digest", "--on-error", "skip", code=3)
    assert [row["index"] for row in rows if "error" in row] == [20]
    good = [i for i in range(50) if i != 20]
    assert [row["sha256"] for row in rows if "sha256" in row] == [hashlib.sha256(records[i]).hexdigest() for i in good]
