"""The Python package beside `array_record` and Grain, and beside Rust: `make bench-python`.

Lookups: one record a call, in one shard of 250,000 records of 1,000 random bytes (uncompressed, `group_size:1`), by random index, with
`array_record`'s `ArrayRecordDataSource` and ours, plainly and under Grain (`MapDataset.source(..)[i]`). The same file and indices, one thread,
warm page cache; in turn, each in a fresh process; CPU seconds of the process, after opening and one warm-up lookup. The first bytes of the
records are summed and compared.

Batches: `prep.load` in Python beside `prep load`, the same loader in Rust, over a dataset of pictures built from the archive in
`tests/golden` (many epochs): examples per second after the first batch, in turn.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RECORDS, RECORD_BYTES = 250_000, 1_000


def make_shard(path):
    from array_record.python import array_record_module

    draw = random.Random(1)
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for _ in range(RECORDS):
        writer.write(draw.randbytes(RECORD_BYTES))
    writer.close()


def open_source(kind, path):
    if kind.startswith("prep"):
        import prep

        source = prep.ArrayRecordDataSource(path)
    else:
        from array_record.python import array_record_data_source

        source = array_record_data_source.ArrayRecordDataSource(path)
    if kind.endswith("grain"):
        import grain.python as grain

        return grain.MapDataset.source(source)
    return source


def lookups(kind, path, calls):
    """CPU and wall microseconds a call, and a checksum."""
    draw = random.Random(2)
    indices = [draw.randrange(RECORDS) for _ in range(calls)]
    source = open_source(kind, path)
    source[indices[0]]
    # All contenders sum the first calls; the quick ones go on for a steadier clock.
    checksum = sum(source[index][0] for index in indices[:1_000])
    cpu, wall = time.process_time(), time.perf_counter()
    for index in indices:
        source[index]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu_us": cpu / calls * 1e6, "wall_us": wall / calls * 1e6, "checksum": checksum}


def stream(kind, catalog, epochs):
    """Examples per second after the first batch, and CPU microseconds an example in all."""
    if kind == "rust":
        arguments = [sys.executable, "-m", "prep", "load", "cifar10", "--batch", "256", "--epochs", str(epochs), "--json"]
        start = os.times()
        environment = {**os.environ, "PREP_CATALOG": str(catalog)}
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
        end = os.times()
        last = json.loads(done.stdout.splitlines()[-1])
        cpu = end.children_user + end.children_system - start.children_user - start.children_system
        return {"per_second": last["rows"] / last["seconds"], "cpu_us": cpu / last["rows"] * 1e6, "examples": last["rows"]}
    import prep

    start = time.process_time()
    examples, wall = 0, None
    for batch in prep.load("cifar10", batch_size=256, num_epochs=epochs, catalog=catalog):
        wall = wall or time.perf_counter()
        examples += batch["image"].shape[0]
    wall = time.perf_counter() - wall
    return {"per_second": examples / wall, "cpu_us": (time.process_time() - start) / examples * 1e6, "examples": examples}


def measure(*arguments):
    done = subprocess.run([sys.executable, __file__, "--one", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def in_turn(rounds, contenders):
    """{name: {measure: median}} of contenders run A B C A B C ..."""
    runs = {name: [] for name, _ in contenders}
    for _ in range(rounds):
        for name, arguments in contenders:
            runs[name].append(measure(*arguments))
    return {name: {key: statistics.median(run[key] for run in rows) for key in rows[0]} for name, rows in runs.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=400, help="of 300 pictures")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        what, kind, path, count = arguments.one
        print(json.dumps(lookups(kind, path, int(count)) if what == "lookups" else stream(kind, path, int(count))))
        return

    import prep

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shard = folder / "records.array_record"
        make_shard(shard)
        kinds = [("array_record", 2_000), ("prep", 100_000), ("array_record under grain", 2_000), ("prep under grain", 100_000)]
        result = in_turn(arguments.rounds, [(kind, ("lookups", kind, shard, calls)) for kind, calls in kinds])
        assert len({row["checksum"] for row in result.values()}) == 1, "other records were read"
        print(f"one record a call, {RECORDS} records of {RECORD_BYTES} bytes, medians of {arguments.rounds}")
        print(f"{'':26} {'CPU us a call':>14} {'wall us a call':>15}")
        for kind, row in result.items():
            print(f"{kind:26} {row['cpu_us']:14.2f} {row['wall_us']:15.2f}")
        for suffix in ("", " under grain"):
            ratio = result["array_record" + suffix]["cpu_us"] / result["prep" + suffix]["cpu_us"]
            print(f"array_record / prep{suffix}: {ratio:.0f}x the CPU")

        catalog = folder / "catalog"
        prep.build("cifar10", from_=ROOT / "tests" / "golden" / "cifar10", checksum=False, catalog=catalog)
        kinds = ["rust", "python"]
        result = in_turn(arguments.rounds, [(kind, ("stream", kind, catalog, arguments.epochs)) for kind in kinds])
        assert result["rust"]["examples"] == result["python"]["examples"]
        print(f"\nbatches of 256 decoded pictures, all cores, medians of {arguments.rounds}")
        for kind, row in result.items():
            print(f"{kind:26} {row['per_second']:14.0f} examples/s {row['cpu_us']:9.2f} CPU us an example")
        print(f"python / rust: {result['python']['per_second'] / result['rust']['per_second']:.0%} of the rate")


if __name__ == "__main__":
    main()
