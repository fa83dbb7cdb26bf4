"""Fixtures of the Python tests: a catalog with a dataset built from the golden archive."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
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


@pytest.fixture
def damaged_catalog(catalog, tmp_path):
    """A copy of it, with damage in the middle of a shard of `cifar10:train`."""
    copy = shutil.copytree(catalog, tmp_path / "damaged")
    shard = min(copy.glob("**/*-train.array_record-*"))
    with shard.open("r+b") as file:
        file.seek(shard.stat().st_size // 2)
        file.write(b"damage" * 20)
    return copy


@pytest.fixture(autouse=True)
def default_catalog(catalog, monkeypatch):
    """Names in the tests mean datasets of that catalog, in child processes too."""
    monkeypatch.setenv("PREP_CATALOG", str(catalog))


# Pytest may have been started with SIGINT ignored, as a background job of a script is. Python then leaves it ignored, and so do all programs
# that are started from it.
START = "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


@contextlib.contextmanager
def started(*words, **options):
    """A program in a session of its own, of which no process is left behind, however the test ends."""
    process = subprocess.Popen(list(map(str, words)), start_new_session=True, **options)
    try:
        yield process
    finally:
        # Its children too, which may be busy.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in filter(None, (process.stdout, process.stderr)):
            stream.close()


def started_as_from_a_terminal(program, *arguments, **options):
    """A Python program that Ctrl-C interrupts."""
    return started(sys.executable, "-c", START, program, *arguments, **options)


@pytest.fixture
def run(tmp_path):
    """Runs a Python program, warnings as errors; gives the finished process."""

    def run(code, *arguments, timeout=30, check=True):
        # A file, so that `spawn` finds the main module.
        program = tmp_path / "program.py"
        program.write_text(code)
        command = [sys.executable, "-W", "error", program, *arguments]
        with started(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
            output, errors = process.communicate(timeout=timeout)
        done = subprocess.CompletedProcess(command, process.returncode, output, errors)
        if check:
            assert (done.returncode, done.stderr) == (0, ""), f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def command(*arguments):
    """The command `prep`, as the wheel installs it; gives its standard output."""
    done = subprocess.run([sys.executable, "-m", "prep", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks_of_the_readme():
    """The Python programs in `python/README.md`."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "python" / "README.md").read_text(), re.DOTALL)


@pytest.fixture
def workers_here(monkeypatch):
    """Grain's own workers, all of their code but the process: it takes seconds of CPU to start one."""
    import cloudpickle
    from grain._src.python.dataset.transformations import process_prefetch

    def iterate(self):
        monkeypatch.setattr(process_prefetch, "_is_in_worker_process", True)
        return cloudpickle.loads(cloudpickle.dumps(self._parent)).__iter__()

    monkeypatch.setattr(process_prefetch.ProcessPrefetchIterDataset, "__iter__", iterate)
