"""Worker processes: how they start, how they end, and how their exceptions come back.

A worker and the main process share a pair of sockets and nothing with a name: whoever dies, the kernel closes the sockets, and that ends
the others. Memory that they share is anonymous, and its handle goes over the socket once.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import multiprocessing
import multiprocessing.process
import multiprocessing.util
import os
import pickle
import random
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy

from prep.errors import InvalidError, WorkerError

LENGTH = struct.Struct("<Q")
# A worker that has been told to stop is given this long before it is killed.
GRACE_S = 0.15


def refuse_while_main_is_imported() -> None:
    """In a process that is being spawned, which imports the main program again: it would start processes of its own, without end."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InvalidError(
            'the program starts processes while one of them imports it: put what it does below `if __name__ == "__main__":`, as `spawn` and '
            "`forkserver` need"
        )


def context(start_method: str | None) -> Any:
    """How processes start: as asked for, as the program set for `multiprocessing`, else by fork where that is usual."""
    method = start_method or multiprocessing.get_start_method(allow_none=True)
    return multiprocessing.get_context(method or ("fork" if sys.platform == "linux" else "spawn"))


def pickled(what: Any, name: str) -> bytes:
    """For processes that do not inherit it. What an interactive session defines has to go by value, which `cloudpickle` can."""
    main = sys.modules.get("__main__")
    if getattr(main, "__file__", None) is None:
        with contextlib.suppress(ImportError):
            import cloudpickle  # type: ignore[import-untyped, import-not-found, unused-ignore]

            return bytes(cloudpickle.dumps(what))
    try:
        return pickle.dumps(what)
    except Exception as error:
        with contextlib.suppress(ImportError):
            import cloudpickle

            return bytes(cloudpickle.dumps(what))
        raise InvalidError(f"{name} not pickle, as worker processes that are not forked need: {error}") from error


def unpickled(payload: bytes) -> Any:
    """In a worker, what `pickled` made."""
    try:
        return pickle.loads(payload)
    except Exception as error:
        error.add_note('define sources and transforms in a module that worker processes can import, or start them with `start_method="fork"`')
        raise


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Ctrl-C waits until the processes are there, and those who warn of threads at a fork are silent: a worker touches none of theirs."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r".*fork\(\)")
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Worker:
    """The main process' side of one worker."""

    def __init__(self, process: multiprocessing.process.BaseProcess, link: socket.socket, name: str) -> None:
        self.process = process
        self.link = link
        self.name = name

    def died(self) -> WorkerError:
        """What to raise when its socket is closed."""
        self.process.join(2)
        code = self.process.exitcode
        if code is not None and code < 0:
            hint = "; the system does that when memory runs out" if code == -signal.SIGKILL else ""
            how = f"was killed by {signal.Signals(-code).name}{hint}"
        else:
            how = f"ended with exit code {code}"
        return WorkerError(f"{self.name} (process {self.process.pid}) {how}")

    def raised(self, error: Raised) -> BaseException:
        """An exception of its, to be raised here, with its traceback as the cause."""
        own: BaseException | None = None
        if error.pickled is not None:
            with contextlib.suppress(Exception):
                own = pickle.loads(error.pickled)
        if own is None:
            own = WorkerError(f"{error.kind}: {error.text}")
        own.__cause__ = _Traceback(f"\n\n{self.name}:\n{error.trace}")
        return own


class _Traceback(Exception):
    """The traceback of a worker, as the cause of an exception."""

    def __str__(self) -> str:
        return str(self.args[0])


class Raised:
    """An exception on its way out of a worker."""

    def __init__(self, error: BaseException) -> None:
        self.kind = type(error).__qualname__
        self.text = str(error)
        self.trace = "".join(traceback.format_exception(error))
        self.pickled: bytes | None = None
        # `SystemExit` in a transform is its failure, not the wish to end the main process.
        if isinstance(error, Exception):
            with contextlib.suppress(Exception):
                data = pickle.dumps(error)
                # Some exceptions pickle and do not come back.
                if isinstance(pickle.loads(data), type(error)):
                    self.pickled = data


def start(context: Any, target: Callable[..., None], arguments: tuple[Any, ...], name: str) -> tuple[Any, socket.socket]:
    """A process that runs `target(link, link_of_main, *arguments)`, and this side of its sockets. Call it inside of `starting`."""
    ours, theirs = socket.socketpair()
    try:
        forked = context.get_start_method() == "fork"
        process = context.Process(
            target=target,
            args=(theirs, ours if forked else None, *arguments),
            name="prep-" + name.replace(" ", "-"),
            daemon=True,
        )
        process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def begin(link_of_main: socket.socket | None) -> None:
    """The first thing that a worker does."""
    # Ctrl-C in a terminal reaches all processes; the main one decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    if link_of_main is not None:
        link_of_main.close()
        # As in a fresh process; else all would draw the same numbers. (`random` sees to that itself.)
        numpy.random.seed(random.SystemRandom().getrandbits(32))


class Processes:
    """Workers that are closed together. Closing them in a forked child lets go of the sockets and no more."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.workers: list[Worker] = []
        self.is_closed = False
        _all.add(self)

    def is_ours(self) -> bool:
        """Whether this process started them."""
        return self.owner == os.getpid()

    def close(self) -> None:
        """Ends all: told by the closed socket, killed after `GRACE_S`. May be called again."""
        self.is_closed = True
        workers, self.workers = list(self.workers), []
        for worker in workers:
            with contextlib.suppress(OSError):
                # Not in a forked child: the pair is its parent's too.
                if self.is_ours():
                    worker.link.shutdown(socket.SHUT_RDWR)
            worker.link.close()
        if not self.is_ours():
            return
        end = time.monotonic() + GRACE_S
        for worker in workers:
            worker.process.join(max(0, end - time.monotonic()))
        for worker in workers:
            if worker.process.exitcode is None:
                worker.process.kill()
        for worker in workers:
            worker.process.join()


_all: weakref.WeakSet[Processes] = weakref.WeakSet()


def _close_all() -> None:
    for processes in list(_all):
        processes.close()


os.register_at_fork(after_in_child=_close_all)
# Before `multiprocessing`, which was imported earlier, ends its processes by a signal.
atexit.register(_close_all)


def anonymous_memory(size: int) -> tuple[mmap.mmap, int, Callable[[], None]]:
    """Memory without a name, its handle, and what closes the handle."""
    close: Callable[[], None]
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("prep")
        close = lambda: os.close(handle)
    else:
        file = tempfile.TemporaryFile()
        handle, close = file.fileno(), file.close
    try:
        os.ftruncate(handle, size)
        return mmap.mmap(handle, size), handle, close
    except BaseException:
        close()
        raise


def framed(message: Any) -> bytes:
    """A pickled message with its length in front."""
    body = pickle.dumps(message, 5)
    return LENGTH.pack(len(body)) + body



def watch(link: socket.socket, finished: threading.Event) -> None:
    """Ends this worker soon after its main process has gone, whatever function it is in."""
    poll = select.poll()
    poll.register(link, 0)
    poll.poll()
    if not finished.wait(GRACE_S):
        os._exit(1)
