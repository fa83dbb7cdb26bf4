"""`DataLoader`: a source, a sampler and operations, as Grain has them."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, TypeAlias

from prep.errors import ClosedError, InvalidError, OutOfRangeError, StateError
from prep.grain.samplers import IndexSampler, Sampler
from prep.grain.sharding import NoSharding, ShardOptions
from prep.grain.sources import RandomAccessDataSource
from prep.grain.transforms import Batch, Operation, Transformation

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["DataLoader", "DataLoaderIterator", "MultiprocessingOptions", "ReadOptions", "load"]

StartMethod: TypeAlias = Literal["fork", "spawn", "forkserver"]


@dataclasses.dataclass(slots=True)
class ReadOptions:
    """How each process reads: `num_threads` threads, up to `prefetch_buffer_size` records ahead. With a 0, no threads.

    The defaults are Grain's. For a source that is in memory, `num_threads=0` is quicker.
    """

    num_threads: int = 16
    prefetch_buffer_size: int = 500

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 0:
                raise InvalidError(f"`{field.name}` is {getattr(self, field.name)}, wanted at least 0")


@dataclasses.dataclass(slots=True)
class MultiprocessingOptions:
    """`num_workers` processes, each up to `per_worker_buffer_size` elements ahead."""

    num_workers: int = 0
    per_worker_buffer_size: int = 1
    enable_profiling: bool = False


class DataLoader:
    """Elements of a source in the order of a sampler, after the operations: the same as Grain's `DataLoader` gives.

    With `worker_count` processes, worker `i` reads positions `i`, `i + worker_count`, ... of the sampler, runs all operations on them, and
    the elements of the workers come in turn; so batches depend on `worker_count`, as in Grain. Arrays reach this process through shared
    memory, without a copy, and may outlive the loader.

    On Linux workers are forked: they start in milliseconds and know all that this process knows, also what a notebook defined. A transform
    that calls JAX or TensorFlow itself needs `start_method="spawn"`, since their threads do not survive a fork.

    >>> from prep.grain import Batch, DataLoader, IndexSampler, NoSharding
    >>> loader = DataLoader(data_source=range(5), sampler=IndexSampler(5, shuffle=True, seed=42, num_epochs=1), operations=[Batch(3)])
    >>> [batch.tolist() for batch in loader]
    [[4, 1, 2], [3, 0]]

    Args:
        data_source: What has a length and gives records by index.
        sampler: Says which record comes when.
        operations: Transforms, `Batch` among them, in order; or callables from an iterator of records to one.
        worker_count: Processes; with 0, all happens in this one, and with None there is one for each processor.
        worker_buffer_size: Elements that each worker makes ahead.
        shard_options: Share of this process; by default that of the sampler.
        read_options: Threads of each process, and records they read ahead.
        enable_profiling: Taken for compatibility.
        start_method: How workers start; by default what the program set for `multiprocessing`, else `fork` on Linux and `spawn` elsewhere.
    """

    def __init__(
        self,
        *,
        data_source: RandomAccessDataSource | Sequence[Any],
        sampler: Sampler,
        operations: Sequence[Transformation | Operation] = (),
        worker_count: Optional[int] = 0,
        worker_buffer_size: int = 1,
        shard_options: ShardOptions | None = None,
        read_options: ReadOptions | None = None,
        enable_profiling: bool = False,
        start_method: StartMethod | None = None,
    ) -> None:
        if worker_count is None:
            worker_count = os.cpu_count() or 1
        if worker_count < 0:
            raise InvalidError(f"`worker_count` is {worker_count}, wanted at least 0")
        least = 1 if worker_count else 0
        if worker_buffer_size < least:
            raise InvalidError(f"`worker_buffer_size` is {worker_buffer_size}, wanted at least {least}")
        shard = shard_options or getattr(sampler, "_shard_options", None)
        if shard is None or not hasattr(shard, "shard_count"):
            raise InvalidError("`shard_options` are missing, and the sampler has none; pass `NoSharding()` for all records")
        from prep.grain._pipeline import kind_of

        self._data_source = data_source
        self._sampler = sampler
        self._operations = list(operations)
        self._shard_options: ShardOptions = shard
        self._read_options = read_options or ReadOptions()
        self._multiprocessing_options = MultiprocessingOptions(int(worker_count), worker_buffer_size, enable_profiling)
        self._start_method = start_method
        # Where in an element's parts a `FlatMap` stands has no place in Grain's state of a loader; then Grain saves that of its dataset.
        self._saves_stages = "flat_map" in [kind_of(operation) for operation in self._operations]

    @property
    def multiprocessing_options(self) -> MultiprocessingOptions:
        """The workers."""
        return self._multiprocessing_options

    def __iter__(self) -> DataLoaderIterator:
        return DataLoaderIterator(self)

    def _source_text(self) -> str:
        """What a state says of the source: not the records, where those are in memory."""
        if isinstance(self._data_source, (list, tuple)) or type(self._data_source).__name__ == "ndarray":
            return str(type(self._data_source))
        return repr(self._data_source)

    def _saved(self, state: dict[str, Any]) -> dict[str, Any]:
        """Grain's state of a loader, from where its workers stand."""
        if self._saves_stages:
            return state
        workers = state.get("iterators_in_use_states", [state])
        shard = self._shard_options
        step = len(workers) * shard.shard_count
        return {
            "version": 2,
            "last_seen_indices": {
                str(worker): shard.shard_index + worker * shard.shard_count + (stands["next_index"] - 1) * step for worker, stands in enumerate(workers)
            },
            "last_worker_index": state.get("next_index_in_cycle", 0) - 1,
            "worker_count": self._multiprocessing_options.num_workers,
            "sampler": repr(self._sampler),
            "data_source": self._source_text(),
        }

    def _restored(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Where workers stand, from what `_saved` gave, here or in Grain."""
        workers = self._multiprocessing_options.num_workers
        try:
            if self._saves_stages:
                if workers and len(saved["iterators_in_use_states"]) != workers:
                    raise StateError(_other("worker count", len(saved["iterators_in_use_states"]), workers))
                return saved
            for name, ours in (("worker_count", workers), ("sampler", repr(self._sampler)), ("data_source", self._source_text())):
                if saved[name] != ours:
                    raise StateError(_other(name.replace("_", " "), saved[name], ours))
            shard, count = self._shard_options, max(workers, 1)
            step = count * shard.shard_count
            states = []
            for worker in range(count):
                last = saved["last_seen_indices"][str(worker)]
                position = (last - shard.shard_index - worker * shard.shard_count) // step + 1
                self._check_position(position, worker, count)
                states.append({"next_index": position})
            if not workers:
                return states[0]
            return {
                "next_index_in_cycle": (saved["last_worker_index"] + 1) % workers,
                "iterators_in_use_states": states,
                "exhausted": [0] * workers,
            }
        except (KeyError, TypeError) as error:
            raise StateError(f"this is not the state of a loader with these operations: {error!r}") from error

    def _check_position(self, position: int, worker: int, count: int) -> None:
        from prep.grain._reading import Order

        length = Order(self._sampler, self._shard_options, worker, count).length
        if not 0 <= position <= length:
            raise OutOfRangeError(f"the state stands at record {position} of a stream of {length}")


def _other(what: str, saved: Any, ours: Any) -> str:
    return f"the state is of another loader: its {what} is {saved}, that of this loader is {ours}"


class DataLoaderIterator(Iterator[Any]):
    """Elements of a loader, with the state to go on from.

    Its processes and threads start with the first element, and end with the last one, with `close`, with the iterator, or with the
    program. Pickles as the loader and the state.
    """

    def __init__(self, data_loader: DataLoader, state: dict[str, Any] | None = None) -> None:
        self._data_loader = data_loader
        self._lock = threading.RLock()
        self._closed = False
        restored = None if state is None else data_loader._restored(state)
        if data_loader.multiprocessing_options.num_workers:
            from prep.grain._workers import Workers

            self._elements: Any = Workers(data_loader)
        else:
            from prep.grain._pipeline import Pipeline

            self._elements = Pipeline(data_loader)
        if restored is not None:
            self._elements.set_state(restored)

    def __iter__(self) -> DataLoaderIterator:
        return self

    def __next__(self) -> Any:
        with self._lock:
            self._check_open()
            return next(self._elements)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the iterator is closed")

    def get_state(self) -> bytes:
        """Where the stream stands after the last element that was given: JSON, a few hundred bytes, the same text as Grain's."""
        with self._lock:
            return json.dumps(self._data_loader._saved(self._elements.get_state()), indent=4).encode()

    def set_state(self, state: bytes) -> None:
        """Goes on from a state of a loader with the same sampler, source and number of workers, here or in Grain."""
        try:
            saved = json.loads(bytes(state).decode())
        except ValueError as error:
            raise StateError(f"the state is not JSON: {error}") from error
        if not isinstance(saved, dict):
            raise StateError("the state is JSON, but not an object")
        with self._lock:
            self._check_open()
            self._elements.set_state(self._data_loader._restored(saved))

    def start_prefetch(self) -> None:
        """Has workers and threads begin, without waiting for an element."""
        with self._lock:
            self._check_open()
            self._elements.start_prefetch()

    def close(self) -> None:
        """Ends processes and threads. The state can still be asked for."""
        with self._lock:
            self._closed = True
            self._elements.close()

    def __enter__(self) -> DataLoaderIterator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return DataLoaderIterator, (self._data_loader, json.loads(self.get_state()))

    def __str__(self) -> str:
        return f"DataLoaderIterator(state={self.get_state().decode()})"


def load(
    source: RandomAccessDataSource,
    *,
    num_epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard_options: ShardOptions | None = None,
    transformations: Sequence[Operation | Transformation] = (),
    batch_size: int | None = None,
    drop_remainder: bool = False,
    worker_count: int | None = 0,
    read_options: ReadOptions | None = None,
) -> DataLoader:
    """A `DataLoader` over an `IndexSampler` of the whole source, with a `Batch` at the end where `batch_size` is given.

    >>> from prep.grain import RangeDataSource
    >>> [batch.tolist() for batch in load(RangeDataSource(0, 5, 1), num_epochs=1, batch_size=2)]
    [[0, 1], [2, 3], [4]]

    Args:
        source: Anything with `len` and `[]`.
        num_epochs: Of the sampler; default: endless.
        shuffle: Of the sampler, with `seed`.
        shard_options: Of the sampler; default: `NoSharding()`.
        transformations: Before the batches.
        batch_size: Elements of a batch, of each worker; default: no batches.
        drop_remainder: Whether a worker's last batch is left out where it is not full.
        worker_count: As `DataLoader` has it.
        read_options: As `DataLoader` has it.

    Raises:
        InvalidError: An option that cannot be right.
    """
    shard_options = shard_options or NoSharding()
    sampler = IndexSampler(len(source), shard_options, shuffle, num_epochs, seed)
    batches = () if batch_size is None else (Batch(batch_size, drop_remainder),)
    operations = [*transformations, *batches]
    return DataLoader(data_source=source, sampler=sampler, operations=operations, worker_count=worker_count, read_options=read_options)
