"""The part about conversion: `prep convert` beside loops of Python over TensorFlow's reader and ArrayRecord's writer, interleaved."""
import json
import os
import shutil
import statistics
import sys

import meter

HERE = os.path.dirname(os.path.abspath(__file__))
OPTIONS = {"uncompressed": "group_size:1,uncompressed", "zstd:3": "group_size:1,zstd:3"}
FILES = 8


class Convert:
    def __init__(self, args, work):
        self.args, self.work = args, os.path.join(work, "convert")
        os.makedirs(self.work, exist_ok=True)

    def peer(self, *words):
        command = [self.args.python, os.path.join(HERE, "peer_convert.py"), *map(str, words)]
        text, metered = meter.run(command, os.path.join(self.work, "peer.log"))
        return json.loads(text.splitlines()[-1]), metered

    def inputs(self, kind, count):
        folder = os.path.join(self.work, f"{kind}-{count}")
        if not os.path.exists(os.path.join(folder, "done")):
            self.peer("make", kind, folder, count, FILES)
        return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".tfrecord"))

    def loop(self, files, options, count, processes):
        out = self.fresh("loop")
        found, metered = self.peer("loop", out, options, processes, *files)
        if found["records"] != count:
            sys.exit(f"the loop gave {found['records']} records of {count}")
        # Without its imports, which are not what is measured.
        return {**metered, "wall_s": found["wall_s"], "cpu_s": found["cpu_s"]}, out

    def prep(self, files, options, count):
        out = self.fresh("prep")
        command = [self.args.prep, "convert", *files, out, "--shards", "same", "--options", options, "--workers", "2", "--json"]
        text, metered = meter.run(command, os.path.join(self.work, "prep.log"))
        found = json.loads(text.splitlines()[-1])
        if found["records"] != count:
            sys.exit(f"prep convert gave {found['records']} records of {count}")
        return metered, out

    def fresh(self, name):
        path = os.path.join(self.work, name)
        shutil.rmtree(path, ignore_errors=True)
        return path

    def main(self):
        runs = []
        for kind, count in [("text", self.args.convert_texts), ("image", self.args.pictures)]:
            files = self.inputs(kind, count)
            for round_number in range(self.args.rounds):
                for name, options in OPTIONS.items():
                    if kind == "image" and name != "uncompressed":
                        continue
                    contenders = {
                        "python loop, 1 process": lambda: self.loop(files, options, count, 1),
                        "python loop, 2 processes": lambda: self.loop(files, options, count, 2),
                        "prep convert, 2 workers": lambda: self.prep(files, options, count),
                    }
                    outs = {}
                    for contender, work in contenders.items():
                        metered, outs[contender] = work()
                        row = {"kind": kind, "options": name, "contender": contender, "round": round_number, "records": count, **metered}
                        runs.append(row)
                        print(
                            f"convert round {round_number}  {kind:5} {name:12} {contender:26} {count / row['wall_s']:10,.0f} records/s "
                            f"{1e6 * row['cpu_s'] / count:9.2f} CPU ms/1,000 {row['peak_mb']:7,.0f} MB",
                            flush=True,
                        )
                    if round_number == 0:
                        found, _ = self.peer("compare", *(outs[contender] for contender in ("python loop, 2 processes", "prep convert, 2 workers")))
                        if not found["same"]:
                            sys.exit(f"{kind}, {name}: prep convert and the loop give other records")
        print("\nmedians")
        medians = []
        rows = {}
        for run in runs:
            rows.setdefault((run["kind"], run["options"], run["contender"]), []).append(run)
        for (kind, options, contender), found in rows.items():
            median = {
                "kind": kind,
                "options": options,
                "contender": contender,
                "records_per_s": statistics.median(run["records"] / run["wall_s"] for run in found),
                "cpu_ms_per_1000": statistics.median(1e6 * run["cpu_s"] / run["records"] for run in found),
                "peak_mb": statistics.median(run["peak_mb"] for run in found),
            }
            medians.append(median)
            print(
                f"  {kind:5} {options:12} {contender:26} {median['records_per_s']:10,.0f} records/s "
                f"{median['cpu_ms_per_1000']:9.2f} CPU ms/1,000 {median['peak_mb']:7,.0f} MB"
            )
        return {"medians": medians, "runs": runs}
