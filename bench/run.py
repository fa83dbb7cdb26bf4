"""Runs `prep` and its peers side by side, interleaved, each in a fresh process, and prints medians and ratios.

    python bench/run.py --prep target/release/prep --python target/bench-venv/bin/python --work target/bench [--rounds 3]

1. build: TFDS's cifar10 builder (after its imports) and `prep build cifar10`, from the same archive, in turn.
2. load: shuffled decoded batches of 256 from the shards that `prep build` wrote: Grain pipelines and `prep load`, in turn.
3. imagenet: TFDS's imagenet2012 builder and `prep build imagenet2012` over archives of ImageNet's layout (see imagenet.py).
4. pipelines: pictures and tokens through `prep-loader`, tf.data and Grain, in turn (see pipelines.py).
5. formats: reading and writing of records and examples: `prep-formats` and other libraries, in turn (see formats.py).

The answers are checked: counts, label sums and pixel sums of both builds are those of the archive. The parent needs only
Python's standard library. Results go to WORK/results.json and
WORK/{imagenet,convert,pipelines,formats}.json.
"""
import argparse
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time

import convert
import formats
import imagenet
import meter
import pipelines

HERE = os.path.dirname(os.path.abspath(__file__))
PIPELINES = {
    "own_threads": "Grain MapDataset, own parse + cv2, 2 threads",
    "own_mp_prefetch": "Grain MapDataset, own parse + cv2, mp_prefetch(2)",
    "own_data_loader": "Grain DataLoader, own parse + cv2, 2 workers",
    "tfds_mp_prefetch": "Grain MapDataset on tfds.data_source, mp_prefetch(2)",
    # No Grain, no prefetching, but the cheapest way to get the same batches out of these files in Python.
    "tfds_getitems": "tfds.data_source, __getitems__ in a loop",
}
BATCH = 256


def machine(python, prep):
    cpu = "unknown"
    with open("/proc/cpuinfo") as file:
        found = re.search(r"model name\s*: (.*)", file.read())
        cpu = found.group(1) if found else cpu
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) / 1024**2
    code = (
        "import importlib.metadata as m, json, sys; have = {d.metadata['Name'].lower().replace('_', '-') for d in m.distributions()}; "
        "print(json.dumps({'python': sys.version.split()[0], **{p: m.version(p) if p.replace('_', '-') in have else 'missing' for p in "
        "('tensorflow-datasets', 'tensorflow-cpu', 'grain', 'array_record', 'bagz', 'pyarrow', 'pylance', 'opencv-python-headless', 'numpy')}}))"
    )
    versions = json.loads(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout)
    versions["prep"] = subprocess.run([prep, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]
    commit = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    versions["commit"] = commit.stdout.strip() or "unknown"
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory, 1),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": versions,
    }


class Bench:
    def __init__(self, args):
        self.args = args
        self.runs = []
        self.work = os.path.abspath(args.work)
        self.archive = os.path.join(self.work, "input", "cifar-10-binary.tar.gz")
        self.catalog = os.path.join(self.work, "catalog")
        os.makedirs(os.path.join(self.work, "input"), exist_ok=True)

    def note(self, part, contender, round_number, result):
        row = {"part": part, "contender": contender, "round": round_number, **result}
        self.runs.append(row)
        rate = row["images"] / row["wall_s"]
        cpu = 1e6 * row["cpu_s"] / row["images"]
        first = f"  first batch {row['first_batch_s']:.2f} s" if "first_batch_s" in row else ""
        print(
            f"{part:5} round {round_number}  {contender:52} {rate:10,.0f} images/s  {cpu:8.2f} CPU ms/1,000  "
            f"{row['peak_mb']:7,.0f} MB{first}  (others {row['others_cores']:.2f} cores)",
            flush=True,
        )

    def log(self, name):
        return os.path.join(self.work, name + ".log")

    def make_data(self):
        stamp = self.archive + f".{self.args.batch_images}"
        if not os.path.exists(stamp):
            data = os.path.join(HERE, "data.py")
            subprocess.run(
                [self.args.python, data, self.archive, self.args.fashion, str(self.args.batch_images)], check=True
            )
            open(stamp, "w").close()
        with open(self.archive + ".json") as file:
            self.facts = json.load(file)
        self.images = sum(split["images"] for split in self.facts.values())

    def check(self, contender, folder):
        out, _ = meter.run([self.args.python, os.path.join(HERE, "peer_load.py"), "check", folder], self.log("check"))
        found = json.loads(out.splitlines()[-1])
        for split, facts in self.facts.items():
            for fact, value in facts.items():
                if found[split][fact] != value:
                    sys.exit(f"{contender}, {split}: {fact} is {found[split][fact]}, the archive has {value}")
        return sum(split["png_bytes"] for split in found.values())

    def tfds_build(self, round_number):
        out = os.path.join(self.work, "tfds")
        shutil.rmtree(out, ignore_errors=True)
        text, metered = meter.run(
            [self.args.python, os.path.join(HERE, "peer_build.py"), self.archive, out], self.log("tfds-build")
        )
        inner = json.loads(text.splitlines()[-1])
        result = {**metered, "images": self.images, "with_imports_s": metered["wall_s"]}
        result.update(wall_s=inner["wall_s"], cpu_s=inner["cpu_s"])
        if round_number == 0:
            result["png_bytes"] = self.check("tfds build", inner["folder"])
        self.note("build", "tfds build", round_number, result)

    def prep_build(self, round_number):
        shutil.rmtree(self.catalog, ignore_errors=True)
        command = [self.args.prep, "build", "cifar10", "--from", os.path.dirname(self.archive), "--no-checksum"]
        command += ["--catalog", self.catalog, "--json"]
        text, metered = meter.run(command, self.log("prep-build"))
        self.folder = json.loads(text.splitlines()[-1])["path"]
        result = {**metered, "images": self.images}
        if round_number == 0:
            result["png_bytes"] = self.check("prep build", self.folder)
        self.note("build", "prep build", round_number, result)

    def grain_load(self, pipeline, round_number):
        command = [self.args.python, os.path.join(HERE, "peer_load.py"), pipeline, self.folder, str(BATCH)]
        text, metered = meter.run([*command, str(self.args.seconds)], self.log("grain-" + pipeline))
        inner = json.loads(text.splitlines()[-1])
        self.note("load", PIPELINES[pipeline], round_number, {**metered, **inner})

    def prep_load(self, round_number):
        base = [self.args.prep, "load", "cifar10", "--catalog", self.catalog, "--batch", str(BATCH), "--seed", "0", "--drop-remainder"]
        _, first = meter.run([*base, "--batches", "1"], self.log("prep-load-first"))
        text, metered = meter.run([*base, "--epochs", str(self.args.epochs), "--json"], self.log("prep-load"))
        report = json.loads(text.splitlines()[-1])
        wanted = self.facts["train"]["images"] // BATCH * BATCH * self.args.epochs
        # Pixels, an int64 label, and the text of `id`, whose length varies.
        if report["rows"] != wanted or report["bytes"] < wanted * (32 * 32 * 3 + 8):
            sys.exit(f"prep load gave {report['rows']} rows and {report['bytes']} bytes, wanted {wanted} rows")
        # The whole process counts, from start to exit, which is more than is counted for the peers.
        result = {**metered, "images": report["rows"], "first_batch_s": first["wall_s"]}
        self.note("load", "prep load", round_number, result)

    def summary(self):
        medians = {}
        for row in self.runs:
            medians.setdefault((row["part"], row["contender"]), []).append(row)
        table = []
        for (part, contender), rows in medians.items():

            def median(field):
                values = [row[field] for row in rows if row.get(field) is not None]
                return statistics.median(values) if values else None

            table.append(
                {
                    "part": part,
                    "contender": contender,
                    "rounds": len(rows),
                    "images_per_s": statistics.median(row["images"] / row["wall_s"] for row in rows),
                    "cpu_ms_per_1000": statistics.median(1e6 * row["cpu_s"] / row["images"] for row in rows),
                    **{f: median(f) for f in ("wall_s", "cpu_s", "peak_mb", "rss_mb", "first_batch_s", "png_bytes", "with_imports_s")},
                }
            )
        return table

    def ratios(self, table):
        build = {row["contender"]: row for row in table if row["part"] == "build"}
        load = {row["contender"]: row for row in table if row["part"] == "load"}
        ratios = {}
        if len(build) == 2:
            ours, peer = build["prep build"], build["tfds build"]
            ratios["build: wall time, tfds / prep"] = peer["wall_s"] / ours["wall_s"]
            ratios["build: CPU, tfds / prep"] = peer["cpu_s"] / ours["cpu_s"]
            ratios["build: peak memory, tfds / prep"] = peer["peak_mb"] / ours["peak_mb"]
            ratios["build: PNG bytes, prep / tfds"] = ours["png_bytes"] / peer["png_bytes"]
        if "prep load" in load and len(load) > 1:
            ours = load.pop("prep load")
            grain = [row for contender, row in load.items() if contender.startswith("Grain")]
            ratios["load: images per CPU second, prep / best Grain"] = (
                min(row["cpu_ms_per_1000"] for row in grain) / ours["cpu_ms_per_1000"]
            )
            ratios["load: images per CPU second, prep / best peer"] = (
                min(row["cpu_ms_per_1000"] for row in load.values()) / ours["cpu_ms_per_1000"]
            )
            ratios["load: images per second, prep / best Grain"] = ours["images_per_s"] / max(row["images_per_s"] for row in grain)
            ratios["load: time to first batch, best Grain / prep"] = (
                min(row["first_batch_s"] for row in grain) / ours["first_batch_s"]
            )
            ratios["load: peak memory, smallest Grain / prep"] = min(row["peak_mb"] for row in grain) / ours["peak_mb"]
        return ratios

    def main(self):
        parts = self.args.parts.split(",")
        head = {"machine": machine(self.args.python, self.args.prep), "rounds": self.args.rounds}
        if "build" in parts or "load" in parts:
            self.save("results.json", {**head, **self.datasets(parts)})
        if "imagenet" in parts:
            self.save("imagenet.json", {**head, "imagenet": imagenet.Imagenet(self.args, self.work).main()})
        if "convert" in parts:
            self.save("convert.json", {**head, "convert": convert.Convert(self.args, self.work).main()})
        if "pipelines" in parts:
            self.save("pipelines.json", {**head, "pipelines": pipelines.Pipelines(self.args, self.work).main()})
        if "formats" in parts:
            busy, start = meter.busy_seconds(), time.monotonic()
            found = formats.Formats(self.args, self.work).main()
            # Of the machine, our own processes included: they keep about one core busy.
            found["busy_cores"] = (meter.busy_seconds() - busy) / (time.monotonic() - start)
            for package, reason in found["missing"].items():
                print(f"not measured: {package} ({reason})")
            self.save("formats.json", {**head, "formats": found})

    def save(self, name, results):
        path = os.path.join(self.work, name)
        with open(path, "w") as file:
            json.dump(results, file, indent=1)
        print(f"\nwritten: {path}")

    def datasets(self, parts):
        """Builds and loads."""
        self.make_data()
        for round_number in range(self.args.rounds):
            if "build" in parts:
                self.tfds_build(round_number)
            if "build" in parts or round_number == 0:
                self.prep_build(round_number)
        if "load" in parts:
            for round_number in range(self.args.rounds):
                for pipeline in PIPELINES:
                    self.grain_load(pipeline, round_number)
                self.prep_load(round_number)
        if "build" not in parts:
            self.runs = [row for row in self.runs if row["part"] != "build"]
        table = self.summary()
        ratios = self.ratios(table)
        print("\nmedians")
        for row in table:
            first = f"  first batch {row['first_batch_s']:.2f} s" if row["first_batch_s"] is not None else ""
            print(
                f"  {row['part']:5} {row['contender']:52} {row['images_per_s']:10,.0f} images/s "
                f"{row['cpu_ms_per_1000']:8.2f} CPU ms/1,000 {row['peak_mb']:7,.0f} MB{first}"
            )
        print("\nratios")
        for name, value in ratios.items():
            print(f"  {name:50} {value:8.2f}")
        return {
            "archive": {"bytes": os.path.getsize(self.archive), **self.facts},
            "medians": table,
            "ratios": ratios,
            "runs": self.runs,
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prep", required=True, help="the prep command, a release build")
    parser.add_argument("--python", required=True, help="interpreter with the packages of requirements.txt")
    parser.add_argument("--work", required=True, help="folder for input, outputs and results")
    parser.add_argument("--fashion", help="folder with the four files of Fashion-MNIST, for build and load")
    parser.add_argument("--measure", help="the program `measure` of prep-formats, a release build, for formats")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="measured time of a Grain stream")
    parser.add_argument("--epochs", type=int, default=8, help="epochs of a prep load run")
    parser.add_argument("--batch-images", type=int, default=10_000, help="images in each of the archive's six batch files")
    parser.add_argument("--parts", default="build,load,imagenet,convert,pipelines,formats")
    parser.add_argument("--imagenet-pictures", type=int, default=17_000, help="pictures of 106 kB of the imagenet part")
    parser.add_argument("--convert-texts", type=int, default=1_000_000, help="texts of about 1 kB of the convert part")
    parser.add_argument("--texts", type=int, default=250_000, help="texts of about 1 kB of the formats part")
    parser.add_argument("--pictures", type=int, default=1_000, help="records of about 110 kB of the formats part")
    parser.add_argument("--pipelines", help="the program `pipelines` of prep-loader, a release build, for pipelines")
    parser.add_argument("--pipelines-scale", type=float, default=1.0, help="of the data of the pipelines part, 0.5 GB")
    parser.add_argument("--pipelines-seconds", type=float, default=4.0, help="measured time of a contender of the pipelines part")
    parser.add_argument("--formats-seconds", type=float, default=0.7, help="measured time of a contender of the formats part")
    parser.add_argument("--only", help="rows of the formats part whose names match this regular expression")
    arguments = parser.parse_args()
    arguments.prep = os.path.abspath(arguments.prep)
    examples = os.path.join(os.path.dirname(arguments.prep), "examples")
    arguments.measure = os.path.abspath(arguments.measure or os.path.join(examples, "measure"))
    arguments.pipelines = os.path.abspath(arguments.pipelines or os.path.join(examples, "pipelines"))
    # Not resolved: a virtual environment's python is a link whose place matters.
    arguments.python = os.path.abspath(arguments.python)
    Bench(arguments).main()
