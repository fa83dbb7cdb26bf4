"""Fixtures of the Python tests: a catalog with a dataset built from the golden archive."""

import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import prep

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests" / "golden"


@pytest.fixture(scope="session")
def catalog(tmp_path_factory):
    """A catalog with `cifar10`: 300 and 60 real pictures."""
    folder = tmp_path_factory.mktemp("prep") / "catalog"
    outcome = prep.build("cifar10", from_=GOLDEN / "cifar10", checksum=False, catalog=folder)
    assert outcome["status"] == "built"
    return folder


@pytest.fixture(autouse=True)
def default_catalog(catalog, monkeypatch):
    """Names in the tests mean datasets of that catalog, in child processes too."""
    monkeypatch.setenv("PREP_CATALOG", str(catalog))


@pytest.fixture
def run(tmp_path):
    """Runs a Python program, warnings as errors; gives the finished process."""

    def run(code, *arguments, timeout=30, check=True):
        # A file, so that `spawn` finds the main module.
        program = tmp_path / "program.py"
        program.write_text(code)
        command = [sys.executable, "-W", "error", str(program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=os.environ)
        if check:
            assert (done.returncode, done.stderr) == (0, ""), f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def command(*arguments):
    """The command `prep`, as the wheel installs it; gives its standard output."""
    done = subprocess.run([sys.executable, "-m", "prep", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
