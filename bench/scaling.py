"""A model of what a conversion costs, stage by stage, checked against runs, and what it says of larger machines.

    python bench/scaling.py --prep target/release/prep --python target/bench-venv/bin/python --work target/bench [--rounds 3]

CPU microseconds a record are measured stage by stage, as differences between runs of one worker that do more and more:

    read      check TFRecord frames                       `prep verify INPUT`
    verify    read chunks back, compare hashes            `prep verify OUTPUT`
    frame     hash, frame and write chunks                convert, uncompressed, less the two above
    codec     zstd:3                                      convert, zstd:3, less convert, uncompressed
    order     key, exchange, sort, merge                  convert, shuffle:1, less convert, uncompressed

The model of a run with U workers in all (threads times processes, at most as many as there are cores):

    wall = start + max(records * sum(stages) / U, bytes written / disk)

`disk` is what a file of the same size takes to be written and synced here. The model is then compared with runs of 1 and 2 workers, and of 1
and 2 processes, none of which it was made from but the first; and evaluated for machines that are not here. It knows nothing of memory
bandwidth shared by many cores, nor of file systems that slow down with the number of writers.
"""
import argparse
import json
import os
import shutil
import statistics
import sys
import time

import convert
import meter

OPTIONS = convert.OPTIONS


class Scaling:
    def __init__(self, args):
        self.args = args
        self.inputs = convert.Convert(args, os.path.abspath(args.work)).inputs("text", args.texts)
        self.out = os.path.join(os.path.abspath(args.work), "scaling")
        self.log = self.out + ".log"
        self.input_bytes = sum(map(os.path.getsize, self.inputs))

    def run(self, command):
        _, metered = meter.run(command, self.log)
        return metered

    def convert(self, options, workers=1, processes=1, order="source"):
        shutil.rmtree(self.out, ignore_errors=True)
        command = ["convert", *self.inputs, self.out, "--options", OPTIONS[options], "--workers", str(workers), "--order", order, "-q"]
        command += ["--shards", "same" if order == "source" else str(len(self.inputs))]
        if processes > 1:
            command = ["launch", "--processes", str(processes), "--", *command]
        metered = self.run([self.args.prep, *command])
        names = [os.path.join(self.out, name) for name in sorted(os.listdir(self.out)) if ".array_record" in name]
        return {**metered, "bytes": sum(map(os.path.getsize, names)), "shards": names}

    def verify(self, files):
        return self.run([self.args.prep, "verify", *files, "-q"])

    def disk(self, size):
        """Bytes a second, written and synced."""
        path = self.out + ".disk"
        block = os.urandom(4 << 20)
        started = time.monotonic()
        with open(path, "wb", buffering=0) as file:
            for _ in range(max(1, size // len(block))):
                file.write(block)
            os.fsync(file.fileno())
        rate = max(1, size // len(block)) * len(block) / (time.monotonic() - started)
        os.unlink(path)
        return rate

    def one_round(self):
        start = self.run([self.args.prep, "--version"])
        runs = {("uncompressed", 1, 1): self.convert("uncompressed")}
        plain = runs["uncompressed", 1, 1]
        verify = self.verify(plain["shards"])
        read = self.verify(self.inputs)
        runs["zstd:3", 1, 1] = self.convert("zstd:3")
        runs["shuffle", 1, 1] = self.convert("uncompressed", order="shuffle:1")
        for name, options, order in [("uncompressed", "uncompressed", "source"), ("zstd:3", "zstd:3", "source"), ("shuffle", "uncompressed", "shuffle:1")]:
            runs[name, 2, 1] = self.convert(options, workers=2, order=order)
            runs[name, 1, 2] = self.convert(options, processes=2, order=order)
        cpu = {
            "read": read["cpu_s"],
            "verify": verify["cpu_s"],
            "frame": plain["cpu_s"] - read["cpu_s"] - verify["cpu_s"],
            "codec": runs["zstd:3", 1, 1]["cpu_s"] - plain["cpu_s"],
            "order": runs["shuffle", 1, 1]["cpu_s"] - plain["cpu_s"],
        }
        return {
            "start_s": start["wall_s"],
            "disk": self.disk(plain["bytes"]),
            "cpu_us": {stage: 1e6 * seconds / self.args.texts for stage, seconds in cpu.items()},
            "runs": {key: (run["wall_s"], run["bytes"]) for key, run in runs.items()},
        }

    def main(self):
        rounds = [self.one_round() for _ in range(self.args.rounds)]
        median = lambda values: statistics.median(list(values))
        stages = {stage: median(r["cpu_us"][stage] for r in rounds) for stage in rounds[0]["cpu_us"]}
        start, disk = median(r["start_s"] for r in rounds), median(r["disk"] for r in rounds)
        base = ["read", "frame", "verify"]
        work = {"uncompressed": base, "zstd:3": [*base, "codec"], "shuffle": [*base, "order"]}
        cores = len(os.sched_getaffinity(0))

        def predict(name, units, rate, size):
            cpu = sum(stages[stage] for stage in work[name]) * self.args.texts / 1e6
            return start + max(cpu / units, size / rate)

        print("CPU microseconds a record, by stage: " + ", ".join(f"{stage} {value:.2f}" for stage, value in stages.items()))
        print(f"start {start:.3f} s, disk {disk / 1e6:,.0f} MB/s written and synced\n")
        print(f"{'run':14} workers x processes   measured s   model s   measured/model")
        checks = []
        for name, workers, processes in rounds[0]["runs"]:
            wall = median(r["runs"][name, workers, processes][0] for r in rounds)
            size = median(r["runs"][name, workers, processes][1] for r in rounds)
            model = predict(name, min(workers * processes, cores), disk, size)
            checks.append({"run": name, "workers": workers, "processes": processes, "wall_s": wall, "model_s": model})
            print(f"{name:14} {workers:7} x {processes:<9} {wall:12.2f} {model:9.2f} {wall / model:16.2f}")
        print("\nwhat the model says of records of this size, records/s (and what limits them)")
        machines = [(2, disk), (8, 1e9), (16, 2e9), (64, 6e9), (64 * 8, 8 * 6e9)]
        for name in work:
            size = median(r["runs"][name, 1, 1][1] for r in rounds) / self.args.texts
            cpu = sum(stages[stage] for stage in work[name]) / 1e6
            cells = []
            for units, rate in machines:
                by_cpu, by_disk = units / cpu, rate / size
                cells.append(f"{min(by_cpu, by_disk) / 1e6:.2f} M ({'CPU' if by_cpu < by_disk else 'disk'})")
            print(f"  {name:14} " + "   ".join(f"{units} cores, {rate / 1e9:.1f} GB/s: {cell}" for (units, rate), cell in zip(machines, cells)))
        shutil.rmtree(self.out, ignore_errors=True)
        return {"texts": self.args.texts, "cpu_us": stages, "start_s": start, "disk_bytes_per_s": disk, "checks": checks}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prep", required=True, help="the prep command, a release build")
    parser.add_argument("--python", default=sys.executable, help="interpreter with array_record and tensorflow, to make the inputs")
    parser.add_argument("--work", required=True, help="folder for inputs, outputs and results")
    parser.add_argument("--texts", type=int, default=1_000_000, help="records of about 1 kB")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    arguments.prep = os.path.abspath(arguments.prep)
    arguments.python = os.path.abspath(arguments.python)
    found = Scaling(arguments).main()
    with open(os.path.join(arguments.work, "scaling.json"), "w") as file:
        json.dump(found, file, indent=1)
