"""The Python package beside `array_record`, TFDS and Grain, and beside Rust: `make bench-python`.

Lookups of records: one record a call, in one shard of 250,000 records of 1,000 random bytes (uncompressed, `group_size:1`), by random index,
with `array_record`'s `ArrayRecordDataSource` and ours, plainly and under Grain (`MapDataset.source(..)[i]`).

Lookups of examples: the same, decoded to dicts, in a TFDS folder of one shard of 250,000 examples (`id`: int64, `vector`: float32[16], `text`:
about 900 bytes), written by TFDS's encoder with TFDS's options (`group_size:1`, zstd), with `tfds.data_source` and `prep.grain.DataSource`.

The same file and indices for all, one thread, warm page cache; in turn, each in a fresh process; CPU seconds of the process, after opening
and one warm-up lookup. What the first lookups gave is summed and compared.

Batches: `prep.load` in Python beside `prep load`, the same loader in Rust: the same data, threads and batch size, in turn; examples per
second after the first batch, CPU of the whole process. `pictures`: PNGs of 32x32, decoded (the archive in `tests/golden`, many epochs).
`examples`: those of above, whose `text` costs Python a `bytes` object a row.

Transforms in Python: pictures of 32x32x3 in memory to float32, mirrored at random, batches of 64, by Grain's `DataLoader` and ours with the same
classes, options and worker processes, whose first batches are summed and compared; and by `MapDataset`, which has an order and generators of
its own. CPU of all processes an example: that of a long run less that of a short one, so that starts do not count. `first batch`: seconds
from making the iterator to the first batch.

Imports: CPU milliseconds of a process that imports a package, less those of one that imports nothing.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "python" / "tests"))
PARTS = ["data", "transforms", "imports"]
RECORDS, RECORD_BYTES = 250_000, 1_000


def make_shard(path):
    from array_record.python import array_record_module

    draw = random.Random(1)
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for _ in range(RECORDS):
        writer.write(draw.randbytes(RECORD_BYTES))
    writer.close()


def make_examples(folder):
    """A TFDS folder, by TFDS's encoder; without TensorFlow."""
    import numpy as np
    import tensorflow_datasets as tfds
    from array_record.python import array_record_module

    features = tfds.features.FeaturesDict(
        {
            "id": tfds.features.Scalar(np.int64),
            "text": tfds.features.Text(),
            "vector": tfds.features.Tensor(shape=(16,), dtype=np.float32),
        }
    )
    draw = random.Random(3)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(5_000)]
    folder.mkdir()
    writer = array_record_module.ArrayRecordWriter(str(folder / "examples-train.array_record-00000-of-00001"), "group_size:1")
    total = 0
    for number in range(RECORDS):
        vector = np.arange(number, number + 16, dtype=np.float32)
        record = features.serialize_example({"id": number, "text": " ".join(draw.choices(words, k=138)), "vector": vector})
        total += len(record)
        writer.write(record)
    writer.close()
    tfds.folder_dataset.write_metadata(
        data_dir=folder,
        features=features,
        # Which would need TensorFlow.
        check_data=False,
        split_infos=[
            tfds.core.SplitInfo(
                name="train",
                shard_lengths=[RECORDS],
                num_bytes=total,
                filename_template=tfds.core.ShardedFileTemplate(
                    data_dir=folder, dataset_name="examples", split="train", filetype_suffix="array_record"
                ),
            )
        ],
    )


def open_source(kind, path):
    if kind.startswith("prep.ArrayRecordDataSource"):
        import prep

        source = prep.ArrayRecordDataSource(path)
    elif kind.startswith("prep.grain.DataSource"):
        import prep.grain

        source = prep.grain.DataSource("examples", catalog=path)
    elif kind.startswith("tfds.data_source"):
        import tensorflow_datasets as tfds

        source = tfds.builder_from_directory(f"{path}/data/examples/1.0.0").as_data_source(split="train")
    else:
        from array_record.python import array_record_data_source

        source = array_record_data_source.ArrayRecordDataSource(path)
    if kind.endswith("under Grain"):
        import grain.python as grain

        return grain.MapDataset.source(source)
    return source


def weight(found):
    """Something of each value of a record or an example."""
    if isinstance(found, bytes):
        return found[0] + found[-1]
    return int(found["id"]) + sum(found["text"]) + float(found["vector"].sum())


def lookups(kind, path, calls):
    """CPU and wall microseconds a call, and a checksum."""
    draw = random.Random(2)
    indices = [draw.randrange(RECORDS) for _ in range(calls)]
    source = open_source(kind, path)
    source[indices[0]]
    # All contenders sum the first calls; the quick ones go on for a steadier clock.
    checksum = sum(weight(source[index]) for index in indices[:500])
    cpu, wall = time.process_time(), time.perf_counter()
    for index in indices:
        source[index]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"cpu_us": cpu / calls * 1e6, "wall_us": wall / calls * 1e6, "checksum": checksum}


def stream(kind, name, catalog, epochs):
    """Examples per second after the first batch, and CPU microseconds an example in all."""
    # Threads are given, so that both have as many.
    threads = len(os.sched_getaffinity(0))
    if kind == "rust":
        arguments = [sys.executable, "-m", "prep", "load", name, "--batch", "256", "--epochs", str(epochs), "--json"]
        start = os.times()
        environment = {**os.environ, "PREP_CATALOG": str(catalog)}
        done = subprocess.run([*arguments, "--threads", str(threads)], env=environment, capture_output=True, text=True, check=True)
        end = os.times()
        last = json.loads(done.stdout.splitlines()[-1])
        cpu = end.children_user + end.children_system - start.children_user - start.children_system
        return {"per_second": last["rows"] / last["seconds"], "cpu_us": cpu / last["rows"] * 1e6, "examples": last["rows"]}
    import prep

    examples, wall = 0, None
    for batch in prep.load(name, batch_size=256, num_epochs=epochs, catalog=catalog, num_threads=threads):
        wall = wall or time.perf_counter()
        examples += len(next(iter(batch.values())))
    wall = time.perf_counter() - wall
    # As of the command: the whole process, from its start.
    return {"per_second": examples / wall, "cpu_us": time.process_time() / examples * 1e6, "examples": examples}


PICTURES = 2_000
TRANSFORMING = ["grain", "prep.grain", "prep.MapDataset"]


def transforming_loader(kind, worker_count, num_epochs):
    """The same program for Grain, for ours after it, and for our own pipelines."""
    import numpy as np

    if kind == "grain":
        import grain.python as grain
        from absl import flags

        # Which its workers ask for.
        flags.FLAGS(sys.argv[:1])
    else:
        import prep.grain as grain

    class Normalise(grain.MapTransform):
        def map(self, element):
            return {**element, "image": element["image"].astype(np.float32) / 255}

    class Flip(grain.RandomMapTransform):
        def random_map(self, element, rng):
            return {**element, "image": element["image"][:, ::-1]} if rng.random() < 0.5 else element

    images = np.random.default_rng(1).integers(0, 256, (PICTURES, 32, 32, 3), np.uint8)
    source = [{"image": image, "label": number} for number, image in enumerate(images)]
    operations = [Normalise(), Flip(), grain.Batch(64, drop_remainder=True)]
    if kind == "prep.MapDataset":
        import prep

        return prep.MapDataset.source(source).seed(1).shuffle().repeat(num_epochs).apply(operations).options(workers=worker_count)
    return grain.DataLoader(
        data_source=source,
        sampler=grain.IndexSampler(PICTURES, grain.NoSharding(), shuffle=True, num_epochs=num_epochs, seed=1),
        operations=operations,
        worker_count=worker_count,
    )


def transformed(kind, worker_count, epochs):
    """CPU seconds of all processes for so many epochs, seconds to the first batch, and a checksum of the first batches."""
    loader = transforming_loader(kind, worker_count, epochs)
    start = time.perf_counter()
    iterator = iter(loader)
    batch = next(iterator)
    first = time.perf_counter() - start
    checksum, examples = 0.0, 0
    while batch is not None:
        if examples < 640:
            checksum += float(batch["image"].sum()) + int(batch["label"].sum())
        examples += len(batch["label"])
        batch = next(iterator, None)
    wall = time.perf_counter() - start - first
    if kind != "grain":
        iterator.close()
    del iterator, loader
    for child in multiprocessing.active_children():
        child.join()
    return {"cpu": sum(os.times()[:4]), "first_s": first, "wall": wall, "examples": examples, "checksum": checksum}


def compare_transforms(rounds, short=2, long=12):
    """Prints a table: Grain and ours, without and with workers."""
    print(f"\na transform in Python, batches of 64, medians of {rounds}")
    print(f"{'':28} {'CPU ms a 1,000':>15} {'examples/s':>12} {'first batch, s':>15}")
    for workers in (0, 2):
        contenders = [((kind, epochs), ("transformed", kind, workers, epochs, 0)) for kind in TRANSFORMING for epochs in (short, long)]
        result = in_turn(rounds, contenders)
        assert result["grain", long]["checksum"] == result["prep.grain", long]["checksum"], "other batches were given"
        cpu = {}
        for kind in TRANSFORMING:
            few, many = result[kind, short], result[kind, long]
            examples = many["examples"] - few["examples"]
            cpu[kind] = (many["cpu"] - few["cpu"]) / examples * 1e6
            rate = examples / (many["wall"] - few["wall"])
            print(f"{f'{kind}, {workers} workers':28} {cpu[kind]:15.1f} {rate:12.0f} {many['first_s']:15.2f}")
        ratios = ", ".join(f"{cpu['grain'] / cpu[kind]:.1f}x that of {kind}" for kind in TRANSFORMING[1:])
        print(f"the CPU of grain with {workers} workers is {ratios}")


def compare_imports(rounds):
    """Prints what imports cost."""

    def cost(code):
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    names = ["pass", "import numpy", "import prep", "import prep, prep.grain", "import grain.python"]
    runs = {name: [] for name in names}
    for _ in range(3 * rounds):
        for name in names:
            runs[name].append(cost(name))
    nothing = statistics.median(runs.pop("pass"))
    print(f"\nimports, CPU ms, medians of {3 * rounds}")
    for name, costs in runs.items():
        print(f"{name:26} {(statistics.median(costs) - nothing) * 1e3:8.0f}")


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


def compare_lookups(rounds, title, contenders):
    """Prints a table of `contenders`: [(kind, path, calls)], and the ratios of each pair of peer and ours."""
    result = in_turn(rounds, [(kind, ("lookups", kind, path, calls, 0)) for kind, path, calls in contenders])
    assert len({row["checksum"] for row in result.values()}) == 1, "other records were read"
    print(f"\n{title}, medians of {rounds}")
    print(f"{'':44} {'CPU us a call':>14} {'wall us a call':>15}")
    for kind, row in result.items():
        print(f"{kind:44} {row['cpu_us']:14.2f} {row['wall_us']:15.2f}")
    rows = list(result.items())
    for (peer, theirs), (_, ours) in zip(rows[::2], rows[1::2]):
        print(f"{peer} / prep: {theirs['cpu_us'] / ours['cpu_us']:.0f}x the CPU")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=400, help="of 300 pictures")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, help="lookups and batches, transforms in Python, imports")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        what, kind, path, count, name = arguments.one
        found = {
            "lookups": lambda: lookups(kind, path, int(count)),
            "stream": lambda: stream(kind, name, path, int(count)),
            "transformed": lambda: transformed(kind, int(path), int(count)),
        }[what]()
        print(json.dumps(found))
        return
    if "transforms" in arguments.parts:
        compare_transforms(arguments.rounds)
    if "imports" in arguments.parts:
        compare_imports(arguments.rounds)
    if "data" not in arguments.parts:
        return

    import prep
    from adopt import adopt

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shard, catalog = folder / "records.array_record", folder / "catalog"
        make_shard(shard)
        contenders = []
        for suffix in ("", " under Grain"):
            contenders.append(("ArrayRecordDataSource" + suffix, shard, 2_000))
            contenders.append(("prep.ArrayRecordDataSource" + suffix, shard, 100_000))
        compare_lookups(
            arguments.rounds, f"one record a call, {RECORDS} records of {RECORD_BYTES} bytes, uncompressed", contenders
        )
        os.unlink(shard)

        make_examples(folder / "examples")
        adopt(folder / "examples", catalog, "examples")
        contenders = []
        for suffix in ("", " under Grain"):
            contenders.append(("tfds.data_source" + suffix, catalog, 2_000))
            contenders.append(("prep.grain.DataSource" + suffix, catalog, 50_000))
        compare_lookups(arguments.rounds, f"one decoded example a call, {RECORDS} examples of 1 kB, zstd", contenders)

        outcome = prep.build("cifar10", from_=ROOT / "tests" / "golden" / "cifar10", checksum=False, catalog=catalog)
        assert outcome["status"] == "built"
        sources = (("pictures", "cifar10", arguments.epochs), ("examples", "examples", 4))
        for what, name, epochs in sources:
            contenders = [(kind, ("stream", kind, catalog, epochs, name)) for kind in ("rust", "python")]
            result = in_turn(arguments.rounds, contenders)
            rust, python = result["rust"], result["python"]
            assert rust["examples"] == python["examples"]
            print(f"\n{what}: batches of 256, {len(os.sched_getaffinity(0))} threads, medians of {arguments.rounds}")
            for kind, row in result.items():
                print(f"{kind:26} {row['per_second']:14.0f} examples/s {row['cpu_us']:9.2f} CPU us an example")
            print(f"python / rust: {python['per_second'] / rust['per_second']:.0%} of the rate", end="")
            print(f", {rust['cpu_us'] / python['cpu_us']:.0%} of the examples a CPU second")


if __name__ == "__main__":
    main()
