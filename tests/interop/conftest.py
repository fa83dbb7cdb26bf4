"""Fixtures: the command under test, datasets it builds from the golden archives, and what TFDS made of the same."""
import base64
import hashlib
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
DATASETS = ["cifar10", "cifar100", "mnist", "fashion_mnist", "kmnist"]


class Prep:
    """The `prep` command with a home and a catalog of its own."""

    def __init__(self, home):
        self.binary = os.environ.get("PREP_BIN")
        if not self.binary:
            pytest.exit("set PREP_BIN to the prep command", returncode=2)
        self.home = pathlib.Path(home)
        self.folders = {}
        self.environment = {**os.environ, "PREP_HOME": str(home), "NO_COLOR": "1"}
        self.environment.pop("PREP_CATALOG", None)

    def run(self, *arguments, code=0):
        """Runs it; the exit code must be `code`. Gives the finished process, with text output."""
        command = [self.binary, *map(str, arguments)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert done.returncode == code, f"{' '.join(command)}\nexit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done

    def json(self, *arguments, code=0):
        """Runs it with --json; gives the objects on standard output."""
        return [json.loads(line) for line in self.run(*arguments, "--json", code=code).stdout.splitlines()]

    def records(self, path):
        """The records of a file."""
        rows = self.json("cat", path)
        assert [row["index"] for row in rows] == list(range(len(rows)))
        return [base64.b64decode(row["bytes"], validate=True) for row in rows]

    def examples(self, name, split):
        """The decoded examples of a dataset: dicts of arrays."""
        rows = self.json("cat", name, "--split", split)
        assert [row["index"] for row in rows] == list(range(len(rows)))
        return [{key: array(value) for key, value in row["features"].items()} for row in rows]

    def indices(self, name, *arguments):
        """Global indices of each batch of `prep load --indices`."""
        done = self.run("load", name, "--indices", *arguments)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["batch"] for row in rows] == list(range(len(rows)))
        return [row["indices"] for row in rows]

    def build(self, name, *arguments):
        """Builds a dataset from its golden archive and notes its folder."""
        rows = self.json("build", name, "--from", GOLDEN / name, "--no-checksum", *arguments)
        self.folders[name] = pathlib.Path(rows[-1]["path"])
        assert rows[-1]["status"] == "built"

    def folder(self, name):
        """The folder of a dataset that was built."""
        return self.folders[name]


def array(value):
    """An array from `{"dtype", "shape", "data"}`; text stays bytes."""
    data = base64.b64decode(value["data"], validate=True)
    if value["dtype"] in ("string", "bytes"):
        return data
    return np.frombuffer(data, np.dtype(value["dtype"]).newbyteorder("<")).reshape(value["shape"])


def pixels_digest(image):
    """SHA-256 of pixels in C order."""
    return hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()


@pytest.fixture(scope="session")
def command(tmp_path_factory):
    """The command, with an empty home: for what needs files only."""
    return Prep(tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="session")
def prep(tmp_path_factory):
    """The command, with all five datasets built."""
    command = Prep(tmp_path_factory.mktemp("home"))
    for name in DATASETS:
        command.build(name)
    return command


@pytest.fixture(scope="session")
def sharded(tmp_path_factory):
    """The command, with cifar10 in 7 shards a split."""
    command = Prep(tmp_path_factory.mktemp("sharded"))
    command.build("cifar10", "--shards", "7")
    return command


@pytest.fixture(scope="session")
def golden():
    """What TFDS made of the same archives, by dataset."""
    return {name: json.loads((GOLDEN / "tfds" / f"{name}.json").read_text(encoding="utf-8")) for name in DATASETS}


@pytest.fixture(scope="session", autouse=True)
def quiet():
    """Marks absl's flags as parsed, as absl.app.run would: grain reads them."""
    import absl.flags

    absl.flags.FLAGS.mark_as_parsed()
