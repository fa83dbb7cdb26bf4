"""The formats part of the benchmark: `prep-formats` and other libraries of records, side by side.

Each row is one job on one input; its contenders and floors run in turn, each in a fresh process, which reads its input into memory or the
page cache first, sums what it got (compared here), and then meters its own CPU seconds, of all its threads, and wall seconds.
"""
import json
import os
import re
import statistics
import subprocess
import sys

from formats_data import variants

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = {
    "array_record": "array_record",
    "bagz": "bagz",
    "arrow": "pyarrow",
    "lance": "pylance",
    "tensorflow": "tensorflow-cpu",
    "prep_python": "prep-data",
}


class Row:
    """One job on one input. `target` is the CPU, in microseconds a record, that our first contender should stay under; or `times`, how many
    times cheaper than the best peer it should be; or `floor_times`, how many times the cost of the named floor it may be."""

    def __init__(self, name, contenders, floors=(), target=None, times=None, floor_times=None):
        self.name, self.contenders, self.floors = name, contenders, floors
        self.target, self.times, self.floor_times = target, times, floor_times


def rows(work):
    """All rows; a contender is (label, [program, what, arguments ...]), where the program is `measure` or `peer`."""

    def of(kind, name):
        return os.path.join(work, kind, name)

    def out(name):
        return os.path.join(work, "out", name)

    def ours(what, *arguments):
        return ("prep", ["measure", what, *arguments])

    # Labels are keys: those of a row differ.
    def peer(what, *arguments):
        return (what.rsplit("-", 1)[0], ["peer", what, *arguments])

    def floor(label, *arguments):
        return (label, ["measure", *arguments])

    for kind, source in (("text", of("", "text.tfrecord")), ("image", of("", "image.tfrecord"))):
        copy_random = floor("copy", "floor-copy-random", source)
        copy, hashes = floor("copy", "floor-copy", source), floor("hash", "floor-hash", source)
        others = [
            (peer(f"arrow-{job}", of(kind, "records.arrow")), peer(f"lance-{job}", of(kind, "records.lance")))
            for job in ("random", "sequential")
        ]
        targets = {
            ("random", "uncompressed_g1"): {"target": 0.8},
            ("random", "zstd_g1"): {"target": 2.8},
            ("one", "uncompressed_g1"): {"target": 3},
            ("one", "zstd_g1"): {"target": 3},
            ("sequential", "uncompressed_g1"): {"target": 0.7},
            ("sequential", "uncompressed_g256"): {"target": 0.25},
            ("sequential", "zstd_g1"): {"floor_times": ("codec", 1.15)},
            ("sequential", "zstd_g256"): {"floor_times": ("codec", 1.15)},
            ("write", "uncompressed_g1"): {"target": 1.2},
            ("write", "zstd_g1"): {"target": 7.5},
        }

        def target(job, variant):
            return targets.get((job, variant), {}) if kind == "text" else {}

        for variant in variants(kind):
            file = of(kind, variant + ".array_record")
            codec, group = variant.split("_g")
            floors = [copy, hashes]
            if codec != "uncompressed":
                floors.append(floor("codec", "floor-decode", source, codec, group))
            extra = []
            if variant == "uncompressed_g1":
                extra = [peer("bagz-random", of(kind, "records.bag")), *others[0]]
            elif variant == "zstd_g1":
                extra = [peer("bagz-random", of(kind, "records.bagz"))]
            contenders = [ours("random", file), peer("prep_python-random", file), peer("array_record-random", file), *extra]
            # Of a group all records are decoded for one, so the codec's cost for one record says little there.
            random_floors = [copy_random, *(floors[1:] if group == "1" else [])]
            yield Row(f"{kind}: random batches of 256, {codec}, group {group}", contenders, random_floors, **target("random", variant))
            if variant in ("uncompressed_g1", "zstd_g1") and kind == "text":
                contenders = [ours("one", file), peer("prep_python-one", file), peer("array_record-one", file)]
                if codec == "uncompressed":
                    contenders += [peer("bagz-one", of(kind, "records.bag")), peer("arrow-one", of(kind, "records.arrow"))]
                yield Row(f"{kind}: one record a call, {codec}, group 1", contenders, floors[1:], **target("one", variant))
            extra = []
            if variant == "uncompressed_g1":
                extra = [peer("bagz-sequential", of(kind, "records.bag")), *others[1]]
            elif variant == "zstd_g1":
                extra = [peer("bagz-sequential", of(kind, "records.bagz"))]
            contenders = [ours("sequential", file), peer("prep_python-sequential", file), peer("array_record-sequential", file)]
            yield Row(f"{kind}: in order, {codec}, group {group}", [*contenders, *extra], floors, **target("sequential", variant))
        for variant, options in variants(kind).items():
            codec, group = variant.split("_g")
            floors = [copy, hashes]
            if codec != "uncompressed":
                floors.append(floor("codec", "floor-encode", source, codec, group))
            extra = []
            if variant == "uncompressed_g1":
                extra = [peer("bagz-write", source, out("x.bag")), peer("arrow-write", source, out("x.arrow"))]
                extra += [peer("lance-write", source, out("x.lance"))]
            elif variant == "zstd_g1":
                extra = [peer("bagz-write", source, out("x.bagz"))]
            contenders = [
                ours("write", source, out("x.array_record"), options),
                peer("array_record-write", source, out("y.array_record"), options),
                *extra,
            ]
            yield Row(f"{kind}: write, {codec}, group {group}", contenders, floors, **target("write", variant))
        crc = floor("CRC", "floor-crc", source)
        contenders = [ours("tfrecord-read", source), peer("tensorflow-read", source)]
        contenders.append(("tf_record_iterator", ["peer", "tensorflow-iterator", source]))
        times = {"times": 2} if kind == "text" else {}
        yield Row(f"{kind}: TFRecord, read in order", contenders, [copy, crc], **times)
        contenders = [ours("tfrecord-write", source, out("x.tfrecord")), peer("tensorflow-write", source, out("y.tfrecord"))]
        yield Row(f"{kind}: TFRecord, write", contenders, [copy, crc], **times)
    shards = of("", "shards")
    contenders = [ours("open-lazy", shards), ("prep, with the index", ["measure", "open", shards])]
    contenders += [peer("prep_python-open", shards), peer("array_record-open", shards)]
    yield Row("open each of 1,000 shards of 100 records", contenders, target=3)
    source = of("", "text.tfrecord")
    yield Row(
        "Example to columns, batches of 256",
        [ours("examples", source, work), ("tf.io.parse_example", ["peer", "tensorflow-parse", source])],
        [floor("copy", "floor-copy", source)],
        times=5,
    )


class Formats:
    def __init__(self, args, work):
        self.args = args
        self.work = os.path.join(work, "formats")
        self.missing = {}

    def make_data(self):
        stamp = os.path.join(self.work, f"made.{self.args.texts}.{self.args.pictures}")
        if not os.path.exists(stamp):
            command = [self.args.python, os.path.join(HERE, "formats_data.py"), self.work]
            environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
            subprocess.run([*command, str(self.args.texts), str(self.args.pictures)], check=True, env=environment)
            open(stamp, "w").close()
        os.makedirs(os.path.join(self.work, "out"), exist_ok=True)
        with open(os.path.join(self.work, "facts.json")) as file:
            facts = json.load(file)
        self.missing.update(facts.pop("missing"))
        return facts

    def run(self, command):
        """The numbers of one process, or None where its package is missing."""
        program, what, *rest = command
        if program == "measure":
            command = [self.args.measure, what, *rest, "--seconds", str(self.args.formats_seconds)]
        else:
            command = [self.args.python, os.path.join(HERE, "peer_formats.py"), what, str(self.args.formats_seconds), *rest]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        result = json.loads(done.stdout.splitlines()[-1])
        if "missing" in result:
            self.missing[PACKAGES[what.rsplit("-", 1)[0]]] = result["missing"]
            return None
        return result

    def row(self, row):
        """Medians of all contenders and floors of a row, in turn."""
        runs = {}
        for _ in range(self.args.rounds):
            for is_floor, (label, command) in [*((False, c) for c in row.contenders), *((True, f) for f in row.floors)]:
                found = self.run(command)
                if found:
                    runs.setdefault((label, is_floor), []).append(found)
        sums = {run["checksum"] for (label, is_floor), found in runs.items() for run in found if not is_floor}
        if len(sums) != 1:
            sys.exit(f"{row.name}: not all contenders got the same records: { {k: v[0]['checksum'] for k, v in runs.items()} }")
        result = {"name": row.name, "contenders": {}, "floors": {}, "target": row.target, "times": row.times, "floor_times": row.floor_times}
        for (label, is_floor), found in runs.items():
            result["floors" if is_floor else "contenders"][label] = {
                "cpu_us": statistics.median(1e6 * run["cpu_s"] / run["records"] for run in found),
                "wall_us": statistics.median(1e6 * run["wall_s"] / run["records"] for run in found),
            }
        result.update(verdict(result))
        return result

    def main(self):
        facts = self.make_data()
        results = []
        for row in rows(self.work):
            if self.args.only and not re.search(self.args.only, row.name):
                continue
            result = self.row(row)
            results.append(result)
            # What was measured stays if the run is stopped.
            with open(os.path.join(self.work, "rows.json"), "w") as file:
                json.dump(results, file, indent=1)
            costs = [f"{label} {cost['cpu_us']:.3f}" for label, cost in result["contenders"].items()]
            floors = [f"{label} {cost['cpu_us']:.3f}" for label, cost in result["floors"].items()]
            print(f"{result['name']}\n  CPU us: {', '.join(costs)}; floors: {', '.join(floors) or 'none'}", flush=True)
            print(f"  best peer / prep: {result['ratio']:.1f}{wanted(result)}", flush=True)
        return {"inputs": facts, "missing": self.missing, "seconds": self.args.formats_seconds, "rows": results}


def verdict(result):
    """The ratio to the best peer, and whether the row's target is met (None where it has none)."""
    ours = result["contenders"]["prep"]["cpu_us"]
    peers = {label: cost["cpu_us"] for label, cost in result["contenders"].items() if not label.startswith("prep")}
    best = min(peers, key=peers.get)
    ratio, met = peers[best] / ours, None
    if result["target"]:
        met = ours < result["target"]
    elif result["times"]:
        met = ratio >= result["times"]
    elif result["floor_times"]:
        label, most = result["floor_times"]
        met = ours <= most * result["floors"][label]["cpu_us"]
    return {"best_peer": best, "ratio": ratio, "met": met}


def wanted(result):
    """The target in words, and whether it is met."""
    if result["met"] is None:
        return ""
    if result["target"]:
        text = f"under {result['target']:g} us"
    elif result["times"]:
        text = f"{result['times']:g} times cheaper than the best peer"
    else:
        text = f"within {result['floor_times'][1]:g} of the {result['floor_times'][0]}"
    return f"; wanted {text}: {'met' if result['met'] else 'NOT met'}"

