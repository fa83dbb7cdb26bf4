"""Pipelines of pictures and tokens: `prep-loader` beside tf.data and Grain, over the same records, in turn.

Every contender is a process of its own that makes batches for some seconds; its own CPU is counted, of all threads, after its first
batch. Then: one process to its first batch, and pipelines restored in the middle.
"""
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# Rows: what ours and what the peers call it, whether items are tokens, and the wanted number: CPU ms per 1,000 pictures, M tokens a CPU second, or at
# least so many times the best peer.
ROWS = [
    ("PNG of 32x32x3, shuffled, batches of 256", "png", "png", "under 12"),
    ("JPEG of 106 KB, random resized crop 224, flip", "jpeg", "jpeg", "under 800"),
    ("JPEG of 2000x1500, the same", "photos", "photos", "1.15 times tf.data"),
    ("JPEG of 2000x1500, the same with DCT scaling", "photos-dct", "photos", "1.3 times tf.data"),
    ("tokens to 2,048, concat-then-split", "tokens-split", "tokens-split", "over 150"),
    ("tokens to 2,048, first-fit", "tokens-fit", "tokens-fit", "over 150"),
]
PEERS = ("tf.data", "grain")


class Pipelines:
    def __init__(self, args, work):
        self.args = args
        self.data = os.path.join(work, "pipelines")

    def ours(self, *arguments):
        done = subprocess.run([self.args.pipelines, *arguments], capture_output=True, text=True, timeout=900)
        if done.returncode:
            sys.exit(f"pipelines {' '.join(arguments)}\n{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def peer(self, *arguments):
        command = [self.args.python, os.path.join(HERE, "peer_pipelines.py"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
        if done.returncode:
            sys.exit(f"{' '.join(command)}\n{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def row(self, title, name, peer_name, wanted):
        seconds = str(self.args.pipelines_seconds)
        runs = {}
        for _ in range(self.args.rounds):
            for threads in ("1", "2"):
                runs.setdefault(f"prep, {threads}", []).extend(self.ours(name, self.data, seconds, threads))
            for library in PEERS:
                # tf.data has no first-fit.
                if (library, peer_name) != ("tf.data", "tokens-fit"):
                    runs.setdefault(library, []).extend(self.peer(library, peer_name, self.data, seconds))
        contenders = {
            contender: {
                "cpu_ns": statistics.median(1e9 * run["cpu_s"] / run["items"] for run in found),
                "items_per_s": statistics.median(run["items"] / run["wall_s"] for run in found),
            }
            for contender, found in runs.items()
        }
        best = min(cost["cpu_ns"] for contender, cost in contenders.items() if contender in PEERS)
        return {
            "name": title,
            "tokens": name.startswith("tokens"),
            "wanted": wanted,
            "contenders": contenders,
            "ratio": best / contenders["prep, 1"]["cpu_ns"],
            "second_thread": contenders["prep, 2"]["items_per_s"] / contenders["prep, 1"]["items_per_s"],
        }

    def first(self):
        """Seconds from the start of a process to its end after the first batch of `png`: medians."""
        found = {}
        for _ in range(max(3, self.args.rounds)):
            for contender, run in (
                ("prep", lambda: self.ours("first", self.data)),
                *((peer, lambda peer=peer: self.peer("first", peer, self.data)) for peer in PEERS),
            ):
                start = time.monotonic()
                run()
                found.setdefault(contender, []).append(time.monotonic() - start)
        return {contender: statistics.median(times) for contender, times in found.items()}

    def main(self):
        stamp = os.path.join(self.data, f"made.{self.args.pipelines_scale}")
        if not os.path.exists(stamp):
            self.ours("make", self.data, str(self.args.pipelines_scale))
            open(stamp, "w").close()
        rows = []
        for row in ROWS:
            rows.append(self.row(*row))
            print(table([rows[-1]])[-1], flush=True)
        first, restored = self.first(), self.ours("restore", self.data)
        print("first batch, s:", ", ".join(f"{name} {seconds:.3f}" for name, seconds in first.items()))
        print("restored, ms:", ", ".join(f"{row['name']} {row['restore_ms']:.2f} (first batch {row['first_batch_ms']:.1f})" for row in restored))
        return {"rows": rows, "first_batch_s": first, "restored": restored}


def table(rows):
    """The table of BENCHMARKS.md."""

    def cost(row, contender):
        if contender not in row["contenders"]:
            return ""
        ns = row["contenders"][contender]["cpu_ns"]
        return f"{1e3 / ns:,.0f} M/s" if row["tokens"] else f"{ns / 1e3:,.1f}" if ns < 1e5 else f"{ns / 1e3:,.0f}"

    lines = [
        "| pipeline | prep, 1 thread | tf.data | Grain | best peer / prep | second thread | wanted |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in rows:
        costs = " | ".join(cost(row, contender) for contender in ("prep, 1", *PEERS))
        lines.append(f"| {row['name']} | {costs} | {row['ratio']:.1f} | {row['second_thread']:.2f} | {row['wanted']} |")
    return lines
