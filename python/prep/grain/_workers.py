"""Worker processes: each runs all operations over its share of the records; their elements come in turn.

    main process                                worker i of n
    one more, slot 3 is free     ------>        a thread that listens
    element: pickle, slot 5, sizes  <------     reads, transforms, copies arrays into slot 5

Arrays travel in slots: anonymous memory that the worker makes, sends the handle of once, and uses again when no array over it is left in
the main process. How processes start and end: `prep._processes`.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
import multiprocessing.process
import os
import pickle
import socket
import struct
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy

from prep import _processes
from prep.grain._pipeline import Pipeline, State, initial_state

if TYPE_CHECKING:
    from prep.grain._loader import DataLoader

_CONTROL = struct.Struct("<ci")
_MORE, _FREE = b"m", b"f"
_ELEMENT, _SLOT, _END, _ERROR = range(4)
# Arrays of an element that are smaller in sum go through the socket.
_SMALL_BYTES = 16 << 10
# Slots of a worker that arrays in the main process may keep; beyond, arrays are copied out, so that handles stay few.
_MOST_LEASED = 8
_ALIGN = 64


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class _Lease:
    """A slot in use by arrays; gives it back when the last of them is gone, from whichever thread that happens in."""

    __slots__ = ("_freed", "_slot")

    def __init__(self, freed: collections.deque[int], slot: int) -> None:
        self._freed = freed
        self._slot = slot

    def __del__(self) -> None:
        self._freed.append(self._slot)


class _Leased(numpy.ndarray):
    """Bytes of a slot. Arrays over it keep it, and it keeps the lease."""

    lease: _Lease | None = None


class _Worker(_processes.Worker):
    """The main process' side of one worker."""

    def __init__(self, process: multiprocessing.process.BaseProcess, link: socket.socket, name: str) -> None:
        super().__init__(process, link, name)
        self._received = bytearray()
        self._handles: collections.deque[int] = collections.deque()
        self._slots: dict[int, mmap.mmap] = {}
        self._freed: collections.deque[int] = collections.deque()
        self._leased = 0

    def _wait_for(self, size: int) -> None:
        while len(self._received) < size:
            try:
                data, handles, _, _ = socket.recv_fds(self.link, 1 << 20, 8)
            except ConnectionError:
                data, handles = b"", []
            self._handles.extend(handles)
            if not data:
                raise self.died()
            self._received += data

    def next(self) -> tuple[Any, State] | None:
        """An element and the state after it, or None at the end."""
        while True:
            self._wait_for(_processes.LENGTH.size)
            end = _processes.LENGTH.size + _processes.LENGTH.unpack_from(self._received)[0]
            self._wait_for(end)
            message = pickle.loads(memoryview(self._received)[_processes.LENGTH.size : end])
            del self._received[:end]
            kind, *rest = message
            if kind == _SLOT:
                self._take_slot(*rest)
            elif kind == _ELEMENT:
                element, state = self._element(*rest)
                self._reply()
                return element, state
            elif kind == _END:
                return None
            else:
                raise self.raised(*rest)

    def _take_slot(self, slot: int, size: int, old: int | None) -> None:
        handle = self._handles.popleft()
        try:
            self._slots[slot] = mmap.mmap(handle, size)
        finally:
            os.close(handle)
        if old is not None:
            del self._slots[old]

    def _element(self, state: State, slot: int | None, sizes: list[int], payload: bytes, inline: bytes) -> tuple[Any, State]:
        if slot is None:
            pieces: list[Any] = []
            start = 0
            for size in sizes:
                pieces.append(bytearray(inline[start : start + size]))
                start += size
            return pickle.loads(payload, buffers=pieces), state
        lease = _Lease(self._freed, slot)
        memory = self._slots[slot]
        copied = self._leased >= _MOST_LEASED
        self._leased += 1
        pieces, start = [], 0
        for size in sizes:
            if copied:
                pieces.append(bytearray(memoryview(memory)[start : start + size]))
            else:
                # Straight from the memory: NumPy would skip a view of a view, and with it the lease.
                piece = _Leased((size,), numpy.uint8, memory, start)
                piece.lease = lease
                pieces.append(piece)
            start += _aligned(size)
        return pickle.loads(payload, buffers=pieces), state

    def _reply(self) -> None:
        words = [_CONTROL.pack(_MORE, 0)]
        while self._freed:
            words.append(_CONTROL.pack(_FREE, self._freed.popleft()))
            self._leased -= 1
        with contextlib.suppress(ConnectionError):
            # If it has died, the next wait says so.
            self.link.sendall(b"".join(words))


class Workers(Iterator[Any]):
    """Elements of all workers, in turn: the order depends on their number, as Grain's does."""

    def __init__(self, loader: DataLoader) -> None:
        options = loader.multiprocessing_options
        self._loader = loader
        self._count = options.num_workers
        self._buffer_size = options.per_worker_buffer_size
        self._next = 0
        self._states = [initial_state(loader._operations)] * self._count
        self._exhausted = [False] * self._count
        self._pool: _processes.Processes | None = None
        self._close: weakref.finalize[..., Workers] | None = None
        self._workers: dict[int, _Worker] = {}

    def get_state(self) -> State:
        # Grain's names for an iterator over iterators.
        return {
            "next_index_in_cycle": self._next,
            "next_index_in_datasets": self._count,
            "iterators_in_use_indices": list(range(self._count)),
            "iterators_in_use_states": list(self._states),
            "exhausted": [int(exhausted) for exhausted in self._exhausted],
            "future_states": {},
        }

    def set_state(self, state: State) -> None:
        self.close()
        self._next = state["next_index_in_cycle"]
        self._states = list(state["iterators_in_use_states"])
        self._exhausted = [bool(exhausted) for exhausted in state["exhausted"]]

    def start_prefetch(self) -> None:
        if self._pool is not None and self._pool.is_ours():
            return
        context = _processes.context(self._loader._start_method)
        forked = context.get_start_method() == "fork"
        payload: Any = self._loader if forked else _processes.pickled(self._loader, "the loader does")
        pool = _processes.Processes()
        # Before the processes are there: an interrupt while they start leaves none.
        self._pool, self._close, self._workers = pool, weakref.finalize(self, pool.close), {}
        with _processes.starting():
            for index, state in enumerate(self._states):
                if not self._exhausted[index]:
                    name = f"worker {index} of {self._count}"
                    arguments = (payload, index, self._count, state, self._buffer_size)
                    worker = _Worker(*_processes.start(context, _work, arguments, name), name)
                    pool.workers.append(worker)
                    self._workers[index] = worker

    def __next__(self) -> Any:
        if all(self._exhausted):
            raise StopIteration
        self.start_prefetch()
        try:
            while True:
                if not self._exhausted[self._next]:
                    found = self._workers[self._next].next()
                    if found is not None:
                        element, self._states[self._next] = found
                        self._next = (self._next + 1) % self._count
                        return element
                    self._exhausted[self._next] = True
                    if all(self._exhausted):
                        self.close()
                        self._next = (self._next + 1) % self._count
                        raise StopIteration
                self._next = (self._next + 1) % self._count
        except StopIteration:
            raise
        except Exception:
            self.close()
            self._exhausted = [True] * self._count
            raise
        except BaseException:
            # Interrupted, perhaps in the middle of a message. The next call starts workers where the stream stands.
            self.close()
            raise

    def close(self) -> None:
        if self._close is not None:
            self._close()
        self._pool = self._close = None
        self._workers = {}


# The rest runs in the workers.


class _MainIsGone(BaseException):
    pass


class _Channel:
    """A worker's side: sends elements while it is allowed to, and listens for what is free again."""

    def __init__(self, link: socket.socket, credit: int) -> None:
        self._link = link
        self._allowed = threading.Semaphore(credit)
        self._slots: dict[int, mmap.mmap] = {}
        self._free: set[int] = set()
        self._made = 0
        self._finished = threading.Event()
        self.closed = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        data = b""
        while True:
            try:
                received = self._link.recv(4096)
            except OSError:
                received = b""
            if not received:
                break
            data += received
            whole = len(data) - len(data) % _CONTROL.size
            for word, slot in _CONTROL.iter_unpack(data[:whole]):
                if word == _FREE:
                    self._free.add(slot)
                else:
                    self._allowed.release()
            data = data[whole:]
        self.closed = True
        self._allowed.release()
        # A transform that takes long is not waited for.
        if not self._finished.wait(_processes.GRACE_S):
            os._exit(1)

    def finish(self) -> None:
        self._finished.set()

    def element(self, element: Any, state: State) -> None:
        buffers: list[pickle.PickleBuffer] = []
        payload = pickle.dumps(element, 5, buffer_callback=buffers.append)
        pieces = [buffer.raw() for buffer in buffers]
        sizes = [piece.nbytes for piece in pieces]
        self._allowed.acquire()
        if sum(sizes) < _SMALL_BYTES:
            self._send(_ELEMENT, state, None, sizes, payload, b"".join(pieces))
            return
        slot = self._slot(sum(map(_aligned, sizes)))
        memory = memoryview(self._slots[slot])
        start = 0
        for piece, size in zip(pieces, sizes):
            memory[start : start + size] = piece
            start += _aligned(size)
        self._send(_ELEMENT, state, slot, sizes, payload, b"")

    def _slot(self, size: int) -> int:
        """A free slot that is large enough: one of old, or a new one, in place of one that is too small."""
        free = list(self._free)
        for slot in free:
            if len(self._slots[slot]) >= size:
                self._free.discard(slot)
                return slot
        old = free[0] if free else None
        # A little more than asked for, since the next element may be a little larger.
        size = -(-(size + size // 8) // mmap.PAGESIZE) * mmap.PAGESIZE
        slot, self._made = self._made, self._made + 1
        self._slots[slot], handle, close = _processes.anonymous_memory(size)
        try:
            self._send(_SLOT, slot, size, old, handle=handle)
        finally:
            close()
        if old is not None:
            self._free.discard(old)
            del self._slots[old]
        return slot

    def end(self) -> None:
        self._send(_END)

    def error(self, error: BaseException) -> None:
        self._send(_ERROR, _processes.Raised(error))

    def _send(self, *message: Any, handle: int | None = None) -> None:
        if self.closed:
            raise _MainIsGone
        data = memoryview(_processes.framed(message))
        try:
            if handle is not None:
                data = data[socket.send_fds(self._link, [data], [handle]) :]
            self._link.sendall(data)
        except OSError as error:
            raise _MainIsGone from error


def _work(
    link: socket.socket,
    of_main: socket.socket | None,
    payload: Any,
    index: int,
    count: int,
    state: State,
    buffer_size: int,
) -> None:
    _processes.begin(of_main)
    channel = _Channel(link, buffer_size)
    try:
        loader = _processes.unpickled(payload) if isinstance(payload, bytes) else payload
        pipeline = Pipeline(loader, index, count)
        pipeline.set_state(state)
        for element in pipeline:
            channel.element(element, pipeline.get_state())
        channel.end()
    except _MainIsGone:
        pass
    except BaseException as error:
        with contextlib.suppress(_MainIsGone):
            channel.error(error)
    finally:
        channel.finish()
