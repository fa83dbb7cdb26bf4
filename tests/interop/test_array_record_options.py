"""Every kind of option string, by Google's writer and by ours: each reads what the other writes.

Ours is `formats/examples/rewrite.rs`, named by `$PREP_REWRITE`.
"""
import hashlib
import os
import random
import subprocess

import pytest
from array_record.python.array_record_module import ArrayRecordReader
from records import BLOCK, KINDS, delimited, field, varint
from test_array_record import check_equal, google_records, write

ROUNDS = max(1, int(os.environ.get("PREP_INTEROP_ROUNDS", "40")) // 20)
CODECS = [
    "uncompressed",
    "zstd",
    "zstd:1,window_log:10",
    "zstd:-5",
    "zstd:19",
    "zstd:9,window_log:27",
    "zstd:3,window_log:31",
    "brotli",
    "brotli:0",
    "brotli:1,window_log:10",
    "brotli:5,window_log:24",
    "brotli:6,window_log:25",
    "brotli:2,window_log:30",
    "brotli:11",
    "snappy",
    "snappy:1",
]
BUCKETS = ["", ",transpose_bucket_size:auto", ",transpose_bucket_size:1", ",transpose_bucket_size:100", ",transpose_bucket_size:1.5k", ",transpose_bucket_size:1M"]


@pytest.fixture(scope="session")
def rewrite():
    """The program that writes a file's records with other options."""
    program = os.environ.get("PREP_REWRITE")
    if not program:
        pytest.exit("set PREP_REWRITE to the example program `rewrite` of prep-formats", returncode=2)
    return program


def options_string(generator, codec, transpose):
    parts = [f"group_size:{generator.choice([1, 2, 7, 256, 65536])}", codec]
    if transpose:
        parts.append(generator.choice(["transpose", "transpose:true"]) + generator.choice(BUCKETS))
    if generator.random() < 0.1:
        parts.append("pad_to_block_boundary:true")
    if generator.random() < 0.2:
        parts.append(generator.choice(["max_parallelism:4", "max_parallelism:auto", "saturation_delay_ms:10"]))
    generator.shuffle(parts)
    return generator.choice(["", "", "", "default,"]) + ",".join(parts)


def google_options(path):
    reader = ArrayRecordReader(str(path))
    try:
        return reader.writer_options_string()
    finally:
        reader.close()


STRINGS = """
default|zstd,default|default,default|,default| default|default:1|default,group_size:4|group_size: 5|group_size :5| group_size:5|group_size:05
group_size:+5|group_size:5.0|group_size:1k|group_size:|group_size|group_size:1:2|group_size:2147483647|max_parallelism:|max_parallelism:-1
max_parallelism: auto|max_parallelism:AUTO|transpose:|transpose:True|transpose: true|transpose:1|transpose_bucket_size|transpose_bucket_size:
transpose,transpose_bucket_size:1.5k|transpose,transpose_bucket_size:0.5|transpose,transpose_bucket_size:0.4|transpose,transpose_bucket_size:2.5
transpose,transpose_bucket_size:1e3|transpose,transpose_bucket_size:16E|transpose,transpose_bucket_size:18446744073709551616
transpose,transpose_bucket_size:1 k|transpose,transpose_bucket_size:+1k|transpose,transpose_bucket_size:.5k|transpose,transpose_bucket_size:5.k
transpose,transpose_bucket_size:k|transpose,transpose_bucket_size:inf|transpose,transpose_bucket_size:1KB|transpose,transpose_bucket_size:1m
transpose,transpose_bucket_size:100B|transpose:false,transpose_bucket_size:7|transpose,transpose|zstd:|zstd: 3|zstd:+3|zstd:-0|zstd:3.0
zstd:-131072|zstd:22|zstd:23|brotli:|brotli:-1|brotli:11|snappy:|snappy:0|snappy:2|snappy:3|uncompressed:|uncompressed: |window_log:20
window_log:auto|window_log|window_log:30|window_log:31,zstd|brotli,window_log:30|window_log:31,brotli:6|uncompressed,window_log:auto
window_log:auto,snappy|window_log:9|pad_to_block_boundary:1|pad_to_block_boundary:initially|saturation_delay_ms|saturation_delay_ms:-1
a:b|:|::|:1|  |Zstd|zstd,zstd|zstd:3,uncompressed|,,,,zstd,,|, ,zstd|zstd :3|zstd:9999999999999999999|chunk_size:1M|final_padding
"""


def test_option_strings_are_taken_refused_and_recorded_alike(rewrite, tmp_path):
    empty, theirs, ours = tmp_path / "empty", tmp_path / "theirs", tmp_path / "ours"
    write(empty, "uncompressed", [])
    for options in STRINGS.strip("\n").replace("\n", "|").split("|"):
        try:
            write(theirs, options, [])
            wanted = google_options(theirs)
        except ValueError:
            wanted = None
        done = subprocess.run([rewrite, empty, ours, options], capture_output=True)
        assert (google_options(ours) if done.returncode == 0 else None) == wanted, options


def both_ways(command, rewrite, folder, options, records):
    """Google's file read by us, ours by Google; the same bytes where nothing is compressed."""
    theirs, ours = folder / "theirs.array_record", folder / "ours.array_record"
    write(theirs, options, records)
    check_equal(command, theirs, records)
    subprocess.run([rewrite, theirs, ours, options], check=True)
    assert google_records(ours) == records, options
    assert google_options(ours) == google_options(theirs)
    if "uncompressed" in options:
        assert theirs.read_bytes() == ours.read_bytes(), options
    reader = ArrayRecordReader(str(ours))
    for index in random.Random(options).sample(range(len(records)), min(5, len(records))):
        assert reader.read([index]) == [records[index]]
    reader.close()


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_random_records_under_every_codec(command, rewrite, tmp_path, codec, transpose, seed):
    generator = random.Random(f"{codec} {transpose} {seed}")
    for kind in KINDS.values():
        options = options_string(generator, codec, transpose)
        # The highest brotli and zstd levels take a second for a megabyte.
        most = 60 if ":1" in codec and "window" not in codec else 300
        records = [kind(generator) for _ in range(generator.choice([1, 2, 10, most]))]
        both_ways(command, rewrite, tmp_path, options, records)


@pytest.mark.parametrize("options", ["uncompressed", "zstd:3", "brotli:3", "snappy", "uncompressed,transpose", "zstd:3,transpose", "brotli:3,transpose", "snappy,transpose"])
def test_records_that_end_near_block_boundaries(command, rewrite, tmp_path, options):
    generator = random.Random(options)
    near = (-200, -132, -131, -130, -89, -64, -48, -41, -40, -39, -24, -1, 0, 1, 24, 40)
    for group_size in (1, 3):
        lengths = [k * BLOCK + n for k in (1, 2) for n in near]
        generator.shuffle(lengths)
        both_ways(command, rewrite, tmp_path, f"group_size:{group_size},{options}", [generator.randbytes(length) for length in lengths])


@pytest.mark.parametrize("bucket", BUCKETS)
@pytest.mark.parametrize("codec", ["uncompressed", "zstd:3", "snappy"])
def test_wide_messages_in_many_buckets(command, rewrite, tmp_path, codec, bucket):
    # Thousands of distinct fields and of steps between them: lists of more nodes than a transition reaches.
    generator = random.Random(f"{codec} {bucket}")
    records = []
    for _ in range(120):
        numbers = [generator.randrange(1, 3000) for _ in range(generator.randrange(200))]
        if generator.random() < 0.5:
            numbers.sort()
        fields = [
            field(n, 0, varint(n)) if n % 3 else delimited(n, generator.randbytes(n % 50)) if n % 2 else field(n, 5, generator.randbytes(4))
            for n in numbers
        ]
        records.append(delimited(generator.randrange(1, 4), b"".join(fields)) if generator.random() < 0.5 else b"".join(fields))
    both_ways(command, rewrite, tmp_path, f"group_size:{generator.choice([50, 256])},transpose:true,{codec}{bucket}", records)
