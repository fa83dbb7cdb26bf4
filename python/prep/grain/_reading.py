"""Records in the sampler's order, read ahead by threads."""

from __future__ import annotations

import collections
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy

from prep._array_record import ArrayRecordDataSource
from prep.errors import OutOfRangeError
from prep.grain import samplers
from prep.grain.sharding import ShardOptions
from prep.grain.sources import DataSource

# A thread is given more records at a time while they take less than this: handing over costs some 20 us.
_QUICK_S = 1e-3
_MOST_AT_A_TIME = 64
# What stopping waits for reads that are under way.
_STOP_S = 1.0


class Row:
    """An element on its way through the operations, and where it comes from."""

    __slots__ = ("_rng", "_sampler", "data", "index", "key")

    def __init__(self, data: Any, index: int, key: Any, rng: Any = None, sampler: Any = None) -> None:
        self.data = data
        self.index = index
        # None of a batch.
        self.key = key
        self._rng = rng
        self._sampler = sampler

    @property
    def rng(self) -> Any:
        """The record's generator, made when first asked for."""
        if self._rng is None and self._sampler is not None:
            self._rng = self._sampler.generator(self.index)
        return self._rng

    def batch(self, data: Any) -> Row:
        """What stands for a batch of which this is the last row."""
        return Row(data, self.index, None, self._rng, self._sampler)


class Order:
    """Which record stands at each position of what one worker of one shard reads: every `worker_count`-th of the shard's stream."""

    def __init__(self, sampler: Any, shard: ShardOptions, worker_index: int = 0, worker_count: int = 1) -> None:
        self._sampler = sampler
        self._first = worker_index * shard.shard_count + shard.shard_index
        self._step = worker_count * shard.shard_count
        of_shard = samplers.length(sampler) // shard.shard_count
        self.length = len(range(worker_index, of_shard, worker_count))
        self._computed = samplers.computes_keys(sampler)
        self._block_size = sampler.block_size if self._computed else 1
        self._block: tuple[int, list[int]] = (-1, [])

    def rows(self, start: int, count: int) -> list[Row]:
        """Up to `count` rows from a position on, without data."""
        positions = range(start, min(start + count, self.length))
        if not self._computed:
            found = [self._sampler[self._first + position * self._step] for position in positions]
            return [Row(_UNREAD, metadata.index, metadata.record_key, metadata.rng) for metadata in found]
        return [Row(_UNREAD, self._first + position * self._step, self._key(position), None, self._sampler) for position in positions]

    def _key(self, position: int) -> int:
        block, within = divmod(position, self._block_size)
        if self._block[0] != block:
            positions = numpy.arange(position - within, min(position - within + self._block_size, self.length), dtype=numpy.int64)
            self._block = block, self._sampler.keys(self._first + positions * self._step).tolist()
        return self._block[1][within]


class _Unread:
    pass


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


_UNREAD = _Unread()


class _Chunk:
    """Some rows for a thread to read; `ready` is free when they are."""

    __slots__ = ("quick", "ready", "rows")

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.quick = False
        self.ready = threading.Lock()
        self.ready.acquire()


class _Threads:
    """Threads that read chunks. They know nothing of the reader, so that it can be collected while they wait."""

    def __init__(self, fill: Callable[[list[Row]], None], most: int) -> None:
        self._fill = fill
        self._most = most
        self._queue: queue.SimpleQueue[_Chunk | None] = queue.SimpleQueue()
        self._running: list[threading.Thread] = []
        self._stopped = False
        self.process = os.getpid()

    def submit(self, chunk: _Chunk) -> None:
        if len(self._running) < self._most:
            thread = threading.Thread(target=self._work, name="prep-grain-read", daemon=True)
            self._running.append(thread)
            thread.start()
        self._queue.put(chunk)

    def _work(self) -> None:
        while (chunk := self._queue.get()) is not None and not self._stopped:
            start = time.monotonic()
            self._fill(chunk.rows)
            chunk.quick = time.monotonic() - start < _QUICK_S
            chunk.ready.release()

    def stop(self) -> None:
        self._stopped = True
        if self.process != os.getpid():
            # A forked child has none of the threads.
            return
        for _ in self._running:
            self._queue.put(None)
        end = time.monotonic() + _STOP_S
        for thread in self._running:
            # The collector may run in one of them.
            if thread is not threading.current_thread():
                thread.join(max(0, end - time.monotonic()))


class Reader(Iterator[Row]):
    """Rows with their records, in order, whatever the number of threads.

    Holds up to `prefetch_buffer_size` records. The threads end with the reader, with the program, or at `close`.
    """

    def __init__(self, source: Any, order: Order, num_threads: int, prefetch_buffer_size: int) -> None:
        self.position = 0
        self._source = source
        self._order = order
        self._num_threads = num_threads if prefetch_buffer_size else 0
        self._buffer_size = prefetch_buffer_size
        self._fill = _filling(source)
        self._threads: _Threads | None = None
        self._stop: weakref.finalize[..., Reader] | None = None
        self._reset(0)

    def _reset(self, position: int) -> None:
        self.position = position
        self._submitted = position
        self._at_a_time = 1
        self._chunks: collections.deque[_Chunk] = collections.deque()
        self._rows: collections.deque[Row] = collections.deque()

    def set_position(self, position: int) -> None:
        """Goes on from there; what was read ahead is dropped."""
        if not 0 <= position <= self._order.length:
            raise OutOfRangeError(f"the state stands at record {position} of a stream of {self._order.length}")
        self.close()
        self._reset(position)

    def close(self) -> None:
        """Stops the threads; the next row would start new ones."""
        if self._stop is not None:
            self._stop()
        self._threads = self._stop = None
        self._reset(self.position)

    def prefetch(self) -> None:
        """Has the threads read ahead, without waiting for them."""
        if not self._num_threads:
            return
        if self._threads is not None and self._threads.process != os.getpid():
            # This is a forked child, which goes on from where its parent stood.
            self._threads = None
            self._reset(self.position)
        if self._threads is None:
            self._threads = _Threads(self._fill, self._num_threads)
            self._stop = weakref.finalize(self, self._threads.stop)
        while (room := self._buffer_size - (self._submitted - self.position)) > 0:
            rows = self._order.rows(self._submitted, min(room, self._at_a_time))
            if not rows:
                break
            chunk = _Chunk(rows)
            self._threads.submit(chunk)
            self._chunks.append(chunk)
            self._submitted += len(rows)

    def __next__(self) -> Row:
        if not self._rows:
            if self.position >= self._order.length:
                raise StopIteration
            if self._num_threads:
                self._take_chunk()
            else:
                self._rows.extend(self._order.rows(self.position, _MOST_AT_A_TIME))
        row = self._rows.popleft()
        self.position += 1
        if row.data is _UNREAD:
            self._fill([row])
        if isinstance(row.data, _Failure):
            error = row.data.error
            error.add_note(f"reading record {row.key} of {described(self._source)}")
            raise error
        return row

    def _take_chunk(self) -> None:
        self.prefetch()
        chunk = self._chunks[0]
        # Interrupted by Ctrl-C, the chunk stays the first.
        chunk.ready.acquire()
        self._chunks.popleft()
        # Each thread has its share of what may be read ahead.
        most = max(1, min(_MOST_AT_A_TIME, self._buffer_size // (2 * self._num_threads)))
        self._at_a_time = min(most, 2 * self._at_a_time) if chunk.quick else max(1, self._at_a_time // 2)
        self._rows.extend(chunk.rows)
        self.prefetch()


def _filling(source: Any) -> Callable[[list[Row]], None]:
    """What reads the records of rows: in one call where the source is one of ours, of which that is known to give the same."""
    try:
        length = len(source)
    except TypeError:
        length = 0

    def fill_each(rows: Sequence[Row]) -> None:
        for row in rows:
            try:
                row.data = source[row.key % length if length else row.key]
            except BaseException as error:
                row.data = _Failure(error)

    def fill_all(rows: Sequence[Row]) -> None:
        try:
            records = source.__getitems__([row.key % length for row in rows])
        except Exception:
            fill_each(rows)
        else:
            for row, record in zip(rows, records, strict=True):
                row.data = record

    return fill_all if length and type(source) in (DataSource, ArrayRecordDataSource) else fill_each


def described(source: Any) -> str:
    """A source for messages, in at most 200 characters."""
    if isinstance(source, (list, tuple, numpy.ndarray)):
        return f"a {type(source).__name__} of length {len(source)}"
    text = repr(source)
    return text if len(text) <= 200 else text[:197] + "..."
