"""Runs a command and meters its whole process tree: wall time, CPU seconds, peak memory."""
import os
import signal
import subprocess
import threading
import time

TICK = os.sysconf("SC_CLK_TCK")


def descendants(root):
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    text = file.read()
                children.setdefault(int(text[text.rindex(b")") + 2 :].split()[1]), []).append(int(entry))
            except (OSError, ValueError):
                pass
    found, todo = [], [root]
    while todo:
        process = todo.pop()
        found.append(process)
        todo.extend(children.get(process, ()))
    return found


def proportional_bytes(root):
    """Proportional set size of the tree: pages shared between its processes count once."""
    total = 0
    for process in descendants(root):
        try:
            with open(f"/proc/{process}/smaps_rollup") as file:
                total += next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))
        except (OSError, ValueError, StopIteration):
            pass
    return total


def busy_seconds():
    """Busy CPU seconds of the machine since it started."""
    with open("/proc/stat") as file:
        values = list(map(int, file.readline().split()[1:9]))
    return (sum(values) - values[3] - values[4]) / TICK


class Peak(threading.Thread):
    """Samples the memory of a tree every 20 ms at first, later every 100 ms."""

    def __init__(self, root):
        super().__init__(daemon=True)
        self.root, self.peak, self.stop = root, 0, threading.Event()

    def run(self):
        started = time.monotonic()
        while not self.stop.wait(0.02 if time.monotonic() - started < 2 else 0.1):
            self.peak = max(self.peak, proportional_bytes(self.root))


def run(command, log, env=None, timeout=900):
    """Runs `command` to its end; its stdout is returned, its stderr goes to the file `log`.

    Gives (stdout, {"wall_s", "cpu_s", "peak_mb", "rss_mb", "others_cores"}). `peak_mb` is the sampled proportional set size of the tree,
    `rss_mb` the kernel's own peak of the largest single process. A command that fails raises RuntimeError.
    """
    full = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu", NO_GCE_CHECK="true", **(env or {}))
    with open(log, "wb") as errors:
        busy, wall = busy_seconds(), time.perf_counter()
        # A session of its own, so that exactly what this starts can be ended.
        process = subprocess.Popen(command, env=full, stdout=subprocess.PIPE, stderr=errors, start_new_session=True)
        peak = Peak(process.pid)
        peak.start()
        killer = threading.Timer(timeout, os.killpg, (process.pid, signal.SIGKILL))
        killer.start()
        chunks = []
        while chunk := process.stdout.read1(1 << 20):
            chunks.append(chunk)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall, busy = time.perf_counter() - wall, busy_seconds() - busy
        killer.cancel()
        peak.stop.set()
        peak.join()
        try:
            os.killpg(process.pid, signal.SIGKILL)  # what it left running
        except ProcessLookupError:
            pass
    if process.returncode != 0:
        with open(log, errors="replace") as file:
            tail = "".join(file.readlines()[-15:])
        raise RuntimeError(f"exit code {process.returncode}: {' '.join(map(str, command))}\n{tail}")
    cpu = usage.ru_utime + usage.ru_stime
    return b"".join(chunks).decode(), {
        "wall_s": wall,
        "cpu_s": cpu,
        "peak_mb": peak.peak / 1e6,
        "rss_mb": usage.ru_maxrss * 1024 / 1e6,
        "others_cores": max(0.0, (busy - cpu) / wall),
    }
