"""What `prep salvage` makes of Google's files after damage, read by Google's reader."""
import json
import random
import subprocess

import pytest
from array_record.python.array_record_module import ArrayRecordReader
from test_array_record import google_records, write

OPTIONS = [
    "uncompressed",
    "zstd:3",
    "zstd:3,group_size:7",
    "brotli:5,group_size:3",
    "snappy,group_size:4",
    "uncompressed,group_size:5,pad_to_block_boundary:true",
    "transpose:true,zstd:3,group_size:6",
]


def salvage(command, path, new):
    """Salvages whatever the exit code is: 0, 3, or 1 where there is nothing to save."""
    words = [command.binary, "salvage", str(path), "-o", str(new), "--overwrite", "--json"]
    done = subprocess.run(words, env=command.environment, capture_output=True, text=True)
    assert done.returncode in (0, 1, 3), done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    if rows:
        assert done.returncode == (0 if rows[0]["complete"] else 3 if rows[0]["records"] else 1)
    return rows


@pytest.mark.parametrize("options", OPTIONS)
def test_google_reads_what_is_left_of_a_damaged_file(command, tmp_path, options):
    generator = random.Random(options)
    sizes = [0, 10, 300, 5000, 70_000]
    records = [generator.randbytes(generator.choice(sizes)) for _ in range(60)]
    path, new = tmp_path / "old.array_record", tmp_path / "new.array_record"
    write(path, options, records)
    whole = path.read_bytes()
    # Untouched: nothing is lost, and the chunks are the same.
    (found,) = command.json("salvage", path, "-o", new)
    assert found["complete"] and found["records"] == len(records)
    assert google_records(new) == records

    for round in range(12):
        data = bytearray(whole)
        if round % 3 == 0:
            del data[generator.randrange(300, len(data)) :]
        if round % 3 == 1:
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        if round % 3 == 2:
            start = generator.randrange(64, len(data))
            data[start : start + 3000] = bytes(len(data[start : start + 3000]))
        path.write_bytes(data)
        rows = salvage(command, path, new)
        if not rows or not rows[0]["written"]:
            continue
        (found,) = rows
        saved = google_records(new)
        assert len(saved) == found["records"]
        for kept in found["kept"]:
            (a, b), old = kept["new_records"], kept["records"]
            if old:
                assert saved[a:b] == records[old[0] : old[1]]
            else:
                assert all(record in records for record in saved[a:b])
        if found["total_records"] is not None:
            assert found["total_records"] == len(records)
            ranges = sorted([kept["records"] for kept in found["kept"]] + [lost["records"] for lost in found["lost"]])
            assert [i for a, b in ranges for i in range(a, b)] == list(range(len(records)))
        reader = ArrayRecordReader(str(new))
        order = list(range(len(saved)))
        generator.shuffle(order)
        if order:
            assert reader.read(order) == [saved[i] for i in order]
        reader.close()
