"""The part about imagenet2012: `prep build imagenet2012` beside TFDS's own builder over the same archives, interleaved."""
import json
import os
import shutil
import statistics
import subprocess
import sys

import meter

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "..", "tests", "golden", "imagenet2012")
FLOOR = "floor: read and copy"


class Imagenet:
    def __init__(self, args, work):
        self.args, self.work = args, os.path.join(work, "imagenet")
        self.tars = os.path.join(self.work, f"tars-{args.imagenet_pictures}")
        os.makedirs(self.work, exist_ok=True)

    def peer(self, *words):
        command = [self.args.python, os.path.join(HERE, "peer_imagenet.py"), *map(str, words)]
        text, metered = meter.run(command, os.path.join(self.work, "peer.log"), timeout=3600)
        return json.loads(text.splitlines()[-1]), metered

    def fresh(self, name):
        path = os.path.join(self.work, name)
        shutil.rmtree(path, ignore_errors=True)
        return path

    def make_data(self):
        done = os.path.join(self.tars, "done")
        if not os.path.exists(done):
            make = [sys.executable, os.path.join(HERE, "imagenet_tars.py"), self.tars, str(self.args.imagenet_pictures)]
            subprocess.run(make, check=True)
            # TFDS's builder wants the validation archive to be there; the two small ones are built as well, and not counted.
            for name in ("ILSVRC2012_img_val.tar", "ILSVRC2012_img_test.tar"):
                shutil.copy(os.path.join(GOLDEN, name), self.tars)
            open(done, "w").close()

    def tfds(self):
        found, metered = self.peer("build", self.tars, self.fresh("tfds"))
        return {**metered, "wall_s": found["wall_s"], "cpu_s": found["cpu_s"]}, found["folder"]

    def prep(self, workers):
        catalog = self.fresh("catalog")
        # As of TFDS: no statistics.
        command = [self.args.prep, "build", "imagenet2012", "--from", self.tars, "--catalog", catalog]
        command += ["--no-statistics", "--json", "--workers", workers]
        text, metered = meter.run(command, os.path.join(self.work, "prep.log"))
        found = json.loads(text.splitlines()[-1])
        train = found["splits"]["train"]
        if train["examples"] != self.args.imagenet_pictures:
            sys.exit(f"prep built {train['examples']} examples of {self.args.imagenet_pictures}")
        return {**metered, "shards": train["shards"]}, found["path"]

    def floor(self):
        found, metered = self.peer("floor", self.tars, os.path.join(self.work, "copy"))
        return {**metered, "wall_s": found["wall_s"], "cpu_s": found["cpu_s"]}, None

    def main(self):
        self.make_data()
        images = self.args.imagenet_pictures
        contenders = {
            "tfds build": self.tfds,
            "prep build, 1 worker": lambda: self.prep("1"),
            "prep build, 2 workers": lambda: self.prep("2"),
            FLOOR: self.floor,
        }
        runs = []
        for round_number in range(self.args.rounds):
            folders = {}
            for contender, work in contenders.items():
                metered, folders[contender] = work()
                runs.append({"contender": contender, "round": round_number, "images": images, **metered})
                print(
                    f"imagenet round {round_number}  {contender:24} {images / metered['wall_s']:10,.0f} images/s "
                    f"{1e6 * metered['cpu_s'] / images:9.2f} CPU ms/1,000 {metered['peak_mb']:7,.0f} MB  "
                    f"(others {metered['others_cores']:.2f} cores)",
                    flush=True,
                )
            if round_number == 0:
                found, _ = self.peer("compare", folders["tfds build"], folders["prep build, 2 workers"])
                if not found["same"]:
                    sys.exit("prep and TFDS have built other examples")
            # Not needed any more, and large.
            shutil.rmtree(os.path.join(self.work, "tfds"))
        shutil.rmtree(os.path.join(self.work, "catalog"))
        print("\nmedians")
        medians = {}
        for contender in contenders:
            rows = [run for run in runs if run["contender"] == contender]
            medians[contender] = {
                "contender": contender,
                "images_per_s": statistics.median(images / row["wall_s"] for row in rows),
                "cpu_ms_per_1000": statistics.median(1e6 * row["cpu_s"] / images for row in rows),
                "peak_mb": statistics.median(row["peak_mb"] for row in rows),
            }
            row = medians[contender]
            print(
                f"  {contender:24} {row['images_per_s']:10,.0f} images/s {row['cpu_ms_per_1000']:9.2f} CPU ms/1,000 {row['peak_mb']:7,.0f} MB"
            )
        peer, one, two = (medians[name] for name in ("tfds build", "prep build, 1 worker", "prep build, 2 workers"))
        ratios = {
            "wall time, tfds / prep with 2 workers": two["images_per_s"] / peer["images_per_s"],
            "CPU, tfds / prep with 2 workers": peer["cpu_ms_per_1000"] / two["cpu_ms_per_1000"],
            "CPU, prep with 2 workers / floor": two["cpu_ms_per_1000"] / medians[FLOOR]["cpu_ms_per_1000"],
            "wall time, 1 worker / 2 workers": two["images_per_s"] / one["images_per_s"],
        }
        for name, value in ratios.items():
            print(f"  {name:40} {value:8.2f}")
        size = os.path.getsize(os.path.join(self.tars, "ILSVRC2012_img_train.tar"))
        return {"pictures": images, "bytes": size, "medians": list(medians.values()), "ratios": ratios, "runs": runs}
