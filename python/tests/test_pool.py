"""The pool that calls functions in worker processes: results, exceptions, ends."""

import gc
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import numpy
import pytest
from conftest import started_as_from_a_terminal

import prep
from prep._pool import CallError, FunctionPool, LocalCalls


def double(element):
    return {name: array * 2 for name, array in element.items()}


def noise(element, rng):
    return element + rng.standard_normal()


def process(_element):
    return os.getpid()


def fail_at_two(element):
    if element == 2:
        raise KeyError("two")
    return element


def unpicklable(element):
    return (lambda: element) if element == 1 else element


def leave(element):
    sys.exit(element)


def kill(element):
    os.kill(os.getpid(), signal.SIGKILL)


def sleep(element):
    time.sleep(element)


FUNCTIONS = [double, noise, process, fail_at_two, unpicklable, leave, kill, sleep]
DOUBLE, NOISE, PROCESS, FAIL, UNPICKLABLE, LEAVE, KILL, SLEEP = range(len(FUNCTIONS))


@pytest.fixture(params=["fork", "spawn"])
def pool(request):
    pool = FunctionPool(FUNCTIONS, 2, request.param)
    yield pool
    pool.close()


def children():
    return [int(pid) for pid in pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def runs(pid):
    try:
        return " Z " not in pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def elements(rows, count):
    return [{"a": numpy.arange(rows * i, rows * (i + 1), dtype=numpy.float32), "b": numpy.int64(i)} for i in range(count)]


def test_gives_what_calls_in_the_same_process_give(pool):
    local = LocalCalls(FUNCTIONS)
    # Through the socket, through memory, memory that grows, memory that is used again.
    for rows, count in [(1, 3), (0, 1), (5_000, 2), (100_000, 3), (5_000, 2), (3, 0)]:
        wanted = local.call(DOUBLE, elements(rows, count))
        got = pool.call(DOUBLE, elements(rows, count))
        assert len(got) == count
        for one, other in zip(got, wanted):
            assert one["a"].tobytes() == other["a"].tobytes() and one["a"].dtype == numpy.float32 and one["a"].flags.writeable
            assert one["b"] == other["b"] and one["b"].dtype == other["b"].dtype


def test_results_outlive_the_pool_and_the_next_call(pool):
    first = pool.call(DOUBLE, elements(100_000, 2))
    pool.call(DOUBLE, elements(100_000, 2)[::-1])
    pool.close()
    assert first[1]["a"][0] == 200_000 and first[1]["a"][-1] == 399_998


def test_generators_are_those_of_the_keys(pool):
    keys = [0, 7, (1 << 128) - 1]
    wanted = [i + numpy.random.Generator(numpy.random.Philox(key=key)).standard_normal() for i, key in enumerate(keys)]
    assert pool.call(NOISE, [0, 1, 2], keys) == wanted == LocalCalls(FUNCTIONS).call(NOISE, [0, 1, 2], keys)


def test_calls_of_many_threads_run_in_all_workers_and_keep_their_results(pool):
    pool.start()
    found, processes = {}, set()

    def work(number):
        for turn in range(20):
            result = pool.call(DOUBLE, elements(number * 100, 3))
            found[number, turn] = result[2]["a"].sum() == elements(number * 100, 3)[2]["a"].sum() * 2
            processes.update(pool.call(PROCESS, [0]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 100 and all(found.values())
    assert processes <= set(children()) and len(processes) == 2


@pytest.mark.parametrize("calls", [LocalCalls(FUNCTIONS), None], ids=["local", "pool"])
def test_an_exception_comes_with_its_element_and_the_results_before_it(calls, pool):
    with pytest.raises(CallError) as raised:
        (calls or pool).call(FAIL, [0, 1, 2, 3])
    assert (raised.value.index, raised.value.results) == (2, [0, 1])
    assert isinstance(raised.value.__cause__, KeyError) and raised.value.__cause__.args == ("two",)
    if calls is None:
        assert "fail_at_two" in str(raised.value.__cause__.__cause__)
    assert (calls or pool).call(FAIL, [4]) == [4]


def test_what_does_not_pickle_is_told(pool):
    with pytest.raises(CallError) as raised:
        pool.call(UNPICKLABLE, [0, 1, 2])
    assert (raised.value.index, raised.value.results) == (1, [0])
    with pytest.raises(Exception, match="pickle|local object"):
        pool.call(FAIL, [lambda: 0])
    assert pool.call(FAIL, [4]) == [4]


def test_exit_and_death_are_errors_and_others_take_over(pool):
    with pytest.raises(CallError) as raised:
        pool.call(LEAVE, [0])
    assert isinstance(raised.value.__cause__, prep.errors.WorkerError)
    for _ in range(2):
        with pytest.raises(prep.errors.WorkerError, match="SIGKILL"):
            pool.call(KILL, [0])
    assert pool.call(FAIL, [4]) == [4]


def test_closing_ends_calls_and_processes(pool):
    pool.start()
    before = children()
    assert len(before) >= 2
    raised = []

    def work():
        with pytest.raises(prep.errors.ClosedError) as error:
            pool.call(SLEEP, [60])
        raised.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while pool._idle:
        time.sleep(0.001)
    pool.close()
    for thread in threads:
        thread.join(30)
    assert len(raised) == 4
    pool.close()
    with pytest.raises(prep.errors.ClosedError):
        pool.call(FAIL, [0])


def test_a_pool_that_is_dropped_leaves_nothing():
    gc.collect()
    handles, processes = len(os.listdir("/proc/self/fd")), children()
    for _ in range(20):
        pool = FunctionPool(FUNCTIONS, 2, "fork")
        pool.call(DOUBLE, elements(10_000, 2))
        del pool
        gc.collect()
    assert (len(os.listdir("/proc/self/fd")), children()) == (handles, processes)


def test_a_child_of_a_fork_has_workers_of_its_own():
    pool = FunctionPool(FUNCTIONS, 1, "fork")
    [own] = pool.call(PROCESS, [0])
    read, write = os.pipe()
    with warnings.catch_warnings():
        # JAX, which other tests import, warns of its threads.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        try:
            os.write(write, str(pool.call(PROCESS, [0])[0]).encode())
            pool.close()
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as pipe:
        other = pipe.read()
    os.waitpid(child, 0)
    assert int(other) not in (own, os.getpid())
    assert pool.call(PROCESS, [0]) == [own]
    pool.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("end", ["exit", "kill", "interrupt"])
def test_workers_end_with_the_program(method, end, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import contextlib, os, sys, threading
            sys.path.insert(0, {os.path.dirname(__file__)!r})
            from test_pool import FUNCTIONS, PROCESS, SLEEP
            from prep._pool import FunctionPool
            from prep.errors import ClosedError

            if __name__ == "__main__":
                pool = FunctionPool(FUNCTIONS, 2, {method!r})
                pool.start()

                def work():
                    with contextlib.suppress(ClosedError):
                        pool.call(SLEEP, [600])

                threading.Thread(target=work, daemon=True).start()
                print(*pool.call(PROCESS, [0]), flush=True)
                print(*open(f"/proc/self/task/{{os.getpid()}}/children").read().split(), flush=True)
                if {end!r} != "exit":
                    pool.call(SLEEP, [600])
            """
        )
    )
    with started_as_from_a_terminal(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        running.stdout.readline()
        workers = [int(pid) for pid in running.stdout.readline().split()]
        assert len(workers) >= 2
        if end != "exit":
            running.send_signal({"kill": signal.SIGKILL, "interrupt": signal.SIGINT}[end])
        running.wait(60)
        complaint = running.stderr.read()
    assert "KeyboardInterrupt" in complaint if end == "interrupt" else "Traceback" not in complaint or end == "kill"
    wait_until = time.monotonic() + 30
    while any(runs(pid) for pid in workers):
        assert time.monotonic() < wait_until, "workers live on"
        time.sleep(0.01)
