"""Ways to leave a stream, for every kind of stream: nothing is left of it, at once. And streams that go on for long."""

import contextlib
import gc
import multiprocessing
import operator
import os
import pathlib
import signal
import subprocess
import sys
import time

import conftest
import pytest
from test_processes import linux, resident, settled, threads

import prep
import prep.grain

SOAK = os.environ.get("PREP_SOAK") == "1"
# Seconds from the event to the last process' end. A machine that is busy with other tests is not held to it.
LIMIT = 2 if SOAK else 15

PROGRAM = """
import gc, multiprocessing, os, pathlib, pickle, sys, time
import numpy as np
import prep, prep.grain, prep.jax

class Keep(prep.grain.MapTransform):
    def map(self, element):
        return {"label": element["label"], "image": element["image"]}

def grain(**options):
    source = prep.grain.DataSource("cifar10")
    sampler = prep.grain.IndexSampler(len(source), shuffle=True, seed=1)
    options = {"read_options": prep.grain.ReadOptions(2, 8)} | options
    return iter(prep.grain.DataLoader(data_source=source, sampler=sampler, operations=[Keep(), prep.grain.Batch(8)], **options))

def keep(element):
    return {"label": element["label"], "image": element["image"]}

def pipeline():
    return prep.MapDataset.load("cifar10").shuffle(1).map(keep).batch(8).repeat().options(num_threads=2)

MAKE = {
    "load": lambda: prep.load("cifar10", batch_size=8, seed=1, num_threads=2),
    "one thread": lambda: prep.load("cifar10", batch_size=8, seed=1, num_threads=0),
    "grain": grain,
    "grain, workers": lambda: grain(worker_count=2),
    "pipeline": lambda: iter(pipeline()),
    "pipeline, workers": lambda: iter(pipeline().options(workers=2)),
    "streams": lambda: iter(pipeline().to_iter_dataset(streams=4).window_shuffle(8, seed=2)),
}
make = MAKE[sys.argv[1]]

def labels(batch):
    return batch["label"].tolist()

def tasks():
    return sorted(os.listdir("/proc/self/task"))

def shared():
    # Names in shared memory that this process or a child has mapped.
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    text = "".join(pathlib.Path(f"/proc/{pid}/maps").read_text() for pid in pids if os.path.exists(f"/proc/{pid}"))
    return sorted({line.split()[5] for line in text.splitlines() if "/dev/shm/" in line})

def ready():
    print("ready", *shared(), flush=True)

def exit():
    global iterator
    iterator = make()
    next(iterator)
    ready()
    sys.exit(0)

def fail():
    iterator = make()
    try:
        next(iterator)
        raise ZeroDivisionError("mine")
    finally:
        ready()

def leave():
    for _ in range(2):
        for batch in make():
            break
        del batch
        gc.collect()
        found = len(os.listdir("/proc/self/fd")), shared()
        if _ == 0:
            before, threads = found, len(tasks())
    end = time.monotonic() + 10
    while len(tasks()) > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert found == before and len(tasks()) <= threads and not multiprocessing.active_children()
    ready()

def interrupt():
    iterator = make()
    next(iterator)
    ready()
    for batch in iterator:
        pass

kill = interrupt

def fork():
    iterator = make()
    next(iterator)
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writing, repr([labels(next(iterator)) for _ in range(3)]).encode())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert os.read(reading, 10_000).decode() == repr([labels(next(iterator)) for _ in range(3)])
    ready()

def read(iterator, queue):
    queue.put([labels(next(iterator)) for _ in range(3)])

def spawn():
    context = multiprocessing.get_context("spawn")
    iterator = make()
    next(iterator)
    queue = context.Queue()
    child = context.Process(target=read, args=(iterator, queue))
    child.start()
    found = queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0 and found == [labels(next(iterator)) for _ in range(3)]
    ready()

def pickles():
    fresh = pickle.loads(pickle.dumps(make()))
    iterator = make()
    assert labels(next(iterator)) == labels(next(fresh))
    data = pickle.dumps(iterator)
    assert len(data) < 4000, len(data)
    again = pickle.loads(data)
    assert [labels(next(iterator)) for _ in range(3)] == [labels(next(again)) for _ in range(3)]
    ready()

def outlive():
    iterator = make()
    kept = [next(iterator) for _ in range(4)]
    wanted = [batch["image"].sum() for batch in kept]
    del iterator
    gc.collect()
    others = [batch["image"].sum() for _, batch in zip(range(40), make())]
    assert [batch["image"].sum() for batch in kept] == wanted
    ready()

if __name__ == "__main__":
    globals()[sys.argv[2]]()
"""

KINDS = ["load", "one thread", "grain", "grain, workers", "pipeline", "pipeline, workers", "streams"]
WAYS = ["exit", "fail", "leave", "interrupt", "kill", "fork", "spawn", "pickles", "outlive"]


def left_of(session):
    """Processes of a session that still run."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, _, group = path.read_text().rsplit(")", 1)[1].split()[:4]
            if int(group) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


@linux
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_left_whatever_the_way(way, kind, tmp_path):
    program, temporary = tmp_path / "program.py", tmp_path / "temporary"
    program.write_text(PROGRAM)
    temporary.mkdir()
    start = conftest.START.replace("signal.signal(", "import warnings; warnings.simplefilter('error'); signal.signal(", 1)
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with conftest.started(
        sys.executable, "-c", start, program, kind, way, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        word, *shared = process.stdout.readline().split() or [None]
        assert word == "ready", process.stderr.read()
        event = time.monotonic()
        if way == "interrupt":
            # As a terminal does: to all of them.
            os.killpg(process.pid, signal.SIGINT)
        elif way == "kill":
            process.kill()
        # Pipes of whoever is left would stay open.
        _, errors = process.communicate(timeout=60)
        while left_of(process.pid) and time.monotonic() - event < 60:
            time.sleep(0.01)
        assert left_of(process.pid) == [] and time.monotonic() - event < LIMIT
        expected = {"fail": (1, "ZeroDivisionError: mine"), "interrupt": (-signal.SIGINT, "KeyboardInterrupt"), "kill": (-signal.SIGKILL, "")}
        code, last = expected.get(way, (0, ""))
        assert (process.returncode, (errors.splitlines() or [""])[-1]) == (code, last), errors
        assert errors.count("Traceback") == (way in ("fail", "interrupt")), errors
    assert list(temporary.iterdir()) == [] and not any(map(os.path.exists, shared))


def over_numbers(**options):
    sampler = prep.grain.IndexSampler(1000, shuffle=True, seed=1)
    return iter(prep.grain.DataLoader(data_source=range(1000), sampler=sampler, read_options=prep.grain.ReadOptions(0, 0), **options))


STREAMS = {
    "load": lambda: prep.load("cifar10", batch_size=1, columns=["label"], num_threads=1),
    "pictures": lambda: prep.load("cifar10", batch_size=2, num_threads=2),
    "grain": over_numbers,
    "grain, workers": lambda: over_numbers(operations=[prep.grain.Batch(2)], worker_count=1),
    "pipeline": lambda: iter(prep.MapDataset.range(1000).shuffle(1).map(operator.neg).batch(2).repeat()),
    "pipeline, workers": lambda: iter(prep.MapDataset.range(1000).shuffle(1).map(operator.neg).batch(2).repeat().options(workers=1)),
}


@linux
@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
def test_memory_is_flat_over_many_small_batches(make):
    """A million of them in `make soak`."""
    count = 1_000_000 if SOAK else 10_000
    with make() as stream:
        for number, _ in zip(range(count), stream):
            if number == count // 10:
                before = resident()
    assert number == count - 1 and resident() - before < 16 << 20


@linux
@pytest.mark.parametrize("workers", [0, 2])
def test_creating_and_dropping_pipelines_leaves_nothing_behind(workers):
    """A thousand times in `make soak`; each second one is left in the middle, each third one in a cycle."""
    dataset = prep.MapDataset.range(1000).shuffle(1).map(operator.neg).batch(2).options(num_threads=2, workers=workers)

    def once(number):
        iterator = iter(dataset)
        if number % 2:
            next(iterator)
        if number % 3 == 0:
            iterator.itself = iterator

    def left():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), multiprocessing.active_children()

    for number in range(6):
        once(number)
    before, running = left(), settled(threads, 0)
    for number in range(1000 if SOAK else 50):
        once(number)
    assert left() == before and settled(threads, running) <= running
