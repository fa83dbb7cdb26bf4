"""How pipelines with Python functions end, whatever ends them: nothing is left behind."""

import gc
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy
import pytest
from conftest import started_as_from_a_terminal
from test_processes import linux, resident, settled, threads

import prep
from prep import MapDataset

PROGRAM = """
import os, signal, sys, time
import prep

def busy(element):
    if element > 3:
        while True:
            pass
    return element

def asleep(element):
    if element > 3:
        time.sleep(60)
    return element

def broken(element):
    if element > 3:
        raise ValueError("four")
    return element

def fine(element):
    return element

if __name__ == "__main__":
    function, workers, end, method = sys.argv[1:]
    dataset = prep.MapDataset.range(10**9).map(globals()[function])
    dataset = dataset.options(workers=int(workers), num_threads=2, start_method=None if method == "none" else method)
    iterator = iter(dataset)
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    print("ready", flush=True)
    if end == "wait":
        list(iterator)
    elif end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif end == "raise":
        raise SystemExit(7)
    elif end == "break":
        for element in iterator:
            break
        del iterator
    elif end == "cycle":
        cycle = [iterator]
        cycle.append(cycle)
        del iterator, cycle
    elif end == "global":
        kept = iterator
"""


def alive(session):
    """Processes of a session."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(folder.name))
    return found


@linux
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("function", "end"), [
    ("fine", "global"), ("fine", "cycle"), ("fine", "break"), ("fine", "kill"), ("fine", "raise"), ("fine", "interrupt"),
    ("busy", "global"), ("busy", "interrupt"), ("asleep", "global"), ("asleep", "interrupt"), ("asleep", "kill"), ("broken", "global"),
])  # fmt: skip
def test_a_program_ends_and_so_do_its_threads_and_processes(tmp_path, function, end, workers):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    how = "wait" if end == "interrupt" else end
    command = f"import runpy, sys; sys.argv = [{str(program)!r}, {function!r}, '{workers}', {how!r}, 'none']; "
    launcher = tmp_path / "launcher.py"
    launcher.write_text(command + f"runpy.run_path({str(program)!r}, run_name='__main__')")
    with started_as_from_a_terminal(launcher, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        if end == "interrupt":
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        wanted = {"kill": (-signal.SIGKILL,), "raise": (7,), "interrupt": (1, 130, -signal.SIGINT)}.get(end, (0,))
        assert process.returncode in wanted, errors
        assert ("KeyboardInterrupt" in errors) == (end == "interrupt"), errors
        assert "Fatal" not in errors and "panicked" not in errors
        assert settled(lambda: len(alive(process.pid)), 0) == 0


@linux
@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_start_in_each_way(tmp_path, method):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), "fine", "2", "break", method]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "ready\n"


@linux
def test_leaving_pipelines_hundreds_of_times_leaves_nothing_behind():
    def once(workers=0):
        pipeline = MapDataset.load("cifar10").shuffle(1).map(lambda element: {"x": element["image"] + 1}).batch(8)
        iterator = iter(pipeline.options(num_threads=2, workers=workers))
        assert next(iterator)["x"].shape == (8, 32, 32, 3)

    for _ in range(30):
        once()
    once(2)
    gc.collect()
    handles, before, memory = len(os.listdir("/proc/self/fd")), settled(threads, 0), resident()
    for _ in range(300):
        once()
    for _ in range(10):
        once(2)
    gc.collect()
    assert settled(threads, before) <= before
    assert len(os.listdir("/proc/self/fd")) <= handles
    assert resident() - memory < 24 << 20


@linux
def test_memory_is_flat_over_many_elements():
    array = numpy.zeros(2000, numpy.uint8)
    pipeline = MapDataset.source([array]).repeat().map(lambda element: {"x": element + 1, "y": [element, "text"]}).batch(50)
    iterator = iter(pipeline.options(num_threads=1))
    for _ in range(100):
        next(iterator)
    before = resident()
    for _ in range(1000):
        next(iterator)
    assert resident() - before < 8 << 20
    iterator.close()


def test_arrays_outlive_the_stream_and_go_to_jax():
    import jax

    with iter(MapDataset.load("cifar10").map(lambda element: {"x": element["image"]}).batch(4)) as iterator:
        batch = next(iterator)
    gc.collect()
    total = int(batch["x"].sum())
    shared = jax.dlpack.from_dlpack(batch["x"])
    assert int(shared.sum(dtype="int32")) == total > 0
    records = MapDataset.load("cifar10", decode=False)
    assert records[0]["image"].startswith(b"\x89PNG")
    parsed = prep.parse_example(prep.open("cifar10").record(3), prep.open("cifar10"), decode=False)
    assert parsed["image"] == records[3]["image"]
    with pytest.raises(prep.errors.DamagedError):
        prep.parse_example(b"\x0a\xff", prep.open("cifar10"))
    dataset = prep.open("cifar10")
    features = json.loads(pathlib.Path(dataset.path, "features.json").read_text())
    for schema in (dataset, dataset.features, features):
        numpy.testing.assert_equal(prep.parse_example(dataset.record(5), schema), dataset[5])
    with pytest.raises(prep.errors.InvalidError, match="features"):
        prep.parse_example(dataset.record(5), {"label": "class_label"})
