"""Calls of the caller's functions on chunks of elements: here, or in worker processes.

    main process, any thread                    a worker that is idle
    function 2, elements, keys   ------>        function(element), one after the other
    results, or what was raised  <------

A worker has no state but its functions: any of them gives the same results, so the stream does not depend on how many there are. Arrays
travel through anonymous memory, one region in each direction, which grows with the largest chunk.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from prep import _processes
from prep._generators import philox
from prep._processes import Raised
from prep.errors import ClosedError, WorkerError

# Arrays of a chunk that are smaller in sum go through the socket.
_SMALL_BYTES = 16 << 10
_ALIGN = 64

Functions = Sequence[Callable[..., Any]]


class CallError(Exception):
    """What a function raised, as the cause; for which element of the chunk; and the results of those before it."""

    def __init__(self, index: int, results: list[Any]) -> None:
        super().__init__(f"element {index} of the chunk")
        self.index = index
        self.results = results


def _run(function: Callable[..., Any], elements: list[Any], keys: list[int] | None) -> tuple[list[Any], BaseException | None]:
    results: list[Any] = []
    try:
        if keys is None:
            for element in elements:
                results.append(function(element))
        else:
            for element, key in zip(elements, keys, strict=True):
                results.append(function(element, philox(key)))
    except BaseException as error:
        return results, error
    return results, None


class LocalCalls:
    """Calls in the thread that asks."""

    def __init__(self, functions: Functions) -> None:
        self._functions = [*functions]

    def call(self, function: int, elements: list[Any], keys: list[int] | None = None) -> list[Any]:
        """`function(element)` of each element in order; with keys (0 to 2**128 - 1) `function(element, rng)`, `rng` a Philox of that key.

        Raises:
            CallError: From what the function raised.
        """
        results, error = _run(self._functions[function], elements, keys)
        if error is not None:
            raise CallError(len(results), results) from error
        return results

    def start(self) -> None:
        """Nothing to start."""

    def close(self) -> None:
        """Nothing to end."""


class FunctionPool:
    """Calls in worker processes, one for each call that runs at the same time. Any thread may call.

    Functions reach processes that are forked as they are; others get them pickled (with `cloudpickle`, where it is installed and needed).
    Workers end with `close`, with the last reference to the pool, with the main process however it ends, and within 0.15 s whatever function
    they are in. A child of a fork starts workers of its own.
    """

    def __init__(self, functions: Functions, num_workers: int, start_method: str | None = None) -> None:
        self._functions = [*functions]
        self._count = num_workers
        self._start_method = start_method
        self._renew()

    def _renew(self) -> None:
        """As if nothing had been started: the state of a new pool, and of one in the child of a fork."""
        self._changed = threading.Condition()
        self._idle: list[_Worker] = []
        self._processes = _processes.Processes()
        self._end = weakref.finalize(self, self._processes.close)

    def start(self) -> None:
        """Starts the workers that are not there; from the thread that consumes, as far as possible: a child of a fork has only the thread
        that forked."""
        if not self._processes.is_ours():
            self._renew()
        if len(self._processes.workers) >= self._count or self._processes.is_closed:
            return
        context = _processes.context(self._start_method)
        forked = context.get_start_method() == "fork"
        payload: Any = self._functions if forked else _processes.pickled(self._functions, "the functions of the pipeline do")
        with self._changed, _processes.starting():
            while len(self._processes.workers) < self._count and not self._processes.is_closed:
                name = f"worker {len(self._processes.workers)} of {self._count}"
                worker = _Worker(*_processes.start(context, _serve, (payload,), name), name)
                self._processes.workers.append(worker)
                self._idle.append(worker)
                self._changed.notify()

    def call(self, function: int, elements: list[Any], keys: list[int] | None = None) -> list[Any]:
        """As `LocalCalls.call`, in a worker; blocks while all are busy.

        Raises:
            CallError: From what the function raised, which has the worker's traceback as its cause; what does not pickle is a `WorkerError`.
            WorkerError: The worker died.
            ClosedError: The pool was closed.
        """
        if not self._processes.workers or not self._processes.is_ours():
            self.start()
        worker = self._take()
        try:
            worker.wire.send((function, elements, keys))
            results, raised = worker.wire.receive()
        except (EOFError, OSError) as error:
            if self._processes.is_closed:
                raise ClosedError("the pipeline was closed") from None
            self._discard(worker)
            raise worker.died() from error
        except BaseException:
            # Interrupted, or what does not pickle: perhaps in the middle of a message.
            self._discard(worker)
            raise
        with self._changed:
            self._idle.append(worker)
            self._changed.notify()
        if raised is not None:
            raise CallError(len(results), results) from worker.raised(raised)
        return results  # type: ignore[no-any-return]

    def _take(self) -> _Worker:
        with self._changed:
            while not self._idle:
                if self._processes.is_closed:
                    raise ClosedError("the pipeline was closed")
                if not self._processes.workers:
                    raise WorkerError("all worker processes have died")
                self._changed.wait()
            return self._idle.pop()

    def _discard(self, worker: _Worker) -> None:
        with self._changed:
            with contextlib.suppress(ValueError):
                self._processes.workers.remove(worker)
            self._changed.notify_all()
        worker.link.close()
        worker.process.kill()
        worker.process.join()

    def close(self) -> None:
        """Ends the workers; calls that run raise `ClosedError`. May be called again."""
        self._end()
        with self._changed:
            self._changed.notify_all()


class _Wire:
    """Values through one socket, alternately in both directions: a message is pickled; large arrays are beside it in memory."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._out: mmap.mmap | None = None
        self._in: mmap.mmap | None = None

    def send(self, value: Any) -> None:
        buffers: list[pickle.PickleBuffer] = []
        payload = pickle.dumps(value, 5, buffer_callback=buffers.append)
        pieces = [buffer.raw() for buffer in buffers]
        sizes = [piece.nbytes for piece in pieces]
        total = sum(map(_aligned, sizes))
        if total < _SMALL_BYTES:
            self._link.sendall(_processes.framed((payload, sizes, b"".join(pieces), 0)))
            return
        if self._out is not None and len(self._out) >= total:
            self._fill(self._out, pieces)
            self._link.sendall(_processes.framed((payload, sizes, None, 0)))
            return
        # A little more than asked for, since the next chunk may be a little larger.
        size = -(-(total + total // 8) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._out, handle, close = _processes.anonymous_memory(size)
        try:
            self._fill(self._out, pieces)
            data = memoryview(_processes.framed((payload, sizes, None, size)))
            self._link.sendall(data[socket.send_fds(self._link, [data], [handle]) :])
        finally:
            close()

    @staticmethod
    def _fill(memory: mmap.mmap, pieces: list[memoryview]) -> None:
        start = 0
        with memoryview(memory) as view:
            for piece in pieces:
                view[start : start + piece.nbytes] = piece
                start += _aligned(piece.nbytes)

    def receive(self) -> Any:
        handles: list[int] = []
        try:
            (length,) = _processes.LENGTH.unpack(self._read(_processes.LENGTH.size, handles))
            payload, sizes, inline, grown = pickle.loads(self._read(length, handles))
            if grown:
                self._in = mmap.mmap(handles[0], grown)
        finally:
            for handle in handles:
                os.close(handle)
        pieces: list[bytearray] = []
        start = 0
        with memoryview(self._in if inline is None and self._in is not None else inline or b"") as view:
            for size in sizes:
                # Copied, since the memory is used again; each by itself, since one element may be kept and the rest not.
                pieces.append(bytearray(view[start : start + size]))
                start += size if inline is not None else _aligned(size)
        return pickle.loads(payload, buffers=pieces)

    def _read(self, size: int, handles: list[int]) -> bytearray:
        data = bytearray(size)
        with memoryview(data) as view:
            got = 0
            while got < size:
                if got == 0:
                    # A handle comes with the first byte of a message.
                    part, new, _, _ = socket.recv_fds(self._link, size, 1)
                    handles.extend(new)
                    count = len(part)
                    view[:count] = part
                else:
                    count = self._link.recv_into(view[got:])
                if not count:
                    raise EOFError
                got += count
        return data


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class _Worker(_processes.Worker):
    def __init__(self, process: Any, link: socket.socket, name: str) -> None:
        super().__init__(process, link, name)
        self.wire = _Wire(link)


def _serve(link: socket.socket, of_main: socket.socket | None, payload: Any) -> None:
    """What a worker does."""
    _processes.begin(of_main)
    finished = threading.Event()
    threading.Thread(target=_processes.watch, args=(link, finished), daemon=True).start()
    wire = _Wire(link)
    functions: Functions | None = None
    try:
        while True:
            number, elements, keys = wire.receive()
            error: BaseException | None = None
            results: list[Any] = []
            try:
                functions = functions or (_processes.unpickled(payload) if isinstance(payload, bytes) else payload)
            except Exception as failed:
                error = failed
            else:
                results, error = _run(functions[number], elements, keys)
            elements = None
            _answer(wire, results, error)
    except (EOFError, OSError):
        pass
    finally:
        finished.set()


def _answer(wire: _Wire, results: list[Any], error: BaseException | None) -> None:
    raised = None if error is None else Raised(error)
    try:
        wire.send((results, raised))
    except (EOFError, OSError):
        raise
    except Exception as unpickled:
        # A result that does not pickle: the first such one is the failure.
        good = 0
        for result in results:
            try:
                pickle.dumps(result, 5)
            except Exception as own:
                unpickled = own
                break
            good += 1
        unpickled.add_note("what a function gives in a worker process has to pickle")
        wire.send((results[:good], Raised(unpickled)))
