"""The operations of a loader over the records that one process reads, and the state of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from prep.errors import InvalidError
from prep.grain import transforms
from prep._batch import make_batch
from prep.grain._reading import Order, Reader, Row, described
from prep.grain.samplers import Record, RecordMetadata

if TYPE_CHECKING:
    from prep.grain._loader import DataLoader

State: TypeAlias = dict[str, Any]

_METHODS = (
    (transforms.Map, "map"),
    (transforms.RandomMap, "random_map"),
    (transforms.TfRandomMap, "np_random_map"),
    (transforms.FlatMap, "flat_map"),
    (transforms.Filter, "filter"),
)


def kind_of(operation: Any) -> str:
    """Which transform an operation is. One of Grain's own classes is told by its method."""
    for kind, method in _METHODS:
        if isinstance(operation, kind):
            return method
    for _, method in _METHODS:
        if hasattr(operation, method):
            return method
    if hasattr(operation, "batch_size") and hasattr(operation, "batch_fn"):
        if operation.batch_size <= 0:
            raise InvalidError(f"`batch_size` is {operation.batch_size}, wanted at least 1")
        return "batch"
    if callable(operation):
        return "operation"
    raise TypeError(f"{operation!r} is no transform: derive from `MapTransform` or another, or use `Batch`")


class Pipeline(Iterator[Any]):
    """Elements of one worker, in order."""

    def __init__(self, loader: DataLoader, worker_index: int = 0, worker_count: int = 1) -> None:
        order = Order(loader._sampler, loader._shard_options, worker_index, worker_count)
        options = loader._read_options
        self._reader = Reader(loader._data_source, order, options.num_threads, options.prefetch_buffer_size)
        self._stateful: _Position | _FlatMap = _Position(self._reader)
        self._rows: Iterator[Row] = self._reader
        for number, operation in enumerate(loader._operations):
            method = kind_of(operation)
            stage = _Stage(f"operation {number + 1} of {len(loader._operations)}, {_name(operation, method)}", loader._data_source)
            self._append(operation, method, stage)

    def _append(self, operation: Any, method: str, stage: _Stage) -> None:
        if method == "map":
            self._rows = map(stage.mapping(operation.map), self._rows)
        elif method in ("random_map", "np_random_map"):
            self._rows = map(stage.random_mapping(getattr(operation, method)), self._rows)
        elif method == "filter":
            self._rows = filter(stage.calling(operation.filter), self._rows)
        elif method == "batch":
            batch_fn = operation.batch_fn or make_batch
            self._rows = _Batches(self._rows, operation.batch_size, operation.drop_remainder, stage, batch_fn)
        elif method == "flat_map":
            self._rows = self._stateful = _FlatMap(self._rows, self._stateful, operation, stage)
        else:
            records = (Record(RecordMetadata(row.index, row.key, row.rng), row.data) for row in self._rows)
            results = operation(records)
            self._rows = (Row(it.data, it.metadata.index, it.metadata.record_key, it.metadata.rng) for it in results)

    def __next__(self) -> Any:
        return next(self._rows).data

    def get_state(self) -> State:
        return self._stateful.get_state()

    def set_state(self, state: State) -> None:
        self._stateful.set_state(state)

    def start_prefetch(self) -> None:
        self._reader.prefetch()

    def close(self) -> None:
        self._reader.close()


def initial_state(operations: Sequence[Any]) -> State:
    """Where a pipeline stands at first."""
    state: State = {"next_index": 0}
    for operation in operations:
        if kind_of(operation) == "flat_map":
            state = {"parent": state, "next_index_in_buffer": 0}
    return state


class _Stage:
    """One operation: calls its function, and says of an exception where it happened."""

    def __init__(self, name: str, source: Any) -> None:
        self._name = name
        self._source = source

    def failed(self, error: BaseException, row: Row) -> BaseException:
        if isinstance(error, StopIteration):
            # It would end the stream, silently.
            wrapped = RuntimeError("a transform raised StopIteration")
            wrapped.__cause__ = error
            error = wrapped
        record = "" if row.key is None else f", record {row.key}"
        error.add_note(f"in {self._name}, at index {row.index} of the sampler{record} of {described(self._source)}")
        return error

    def calling(self, function: Callable[[Any], Any]) -> Callable[[Row], Any]:
        def call(row: Row) -> Any:
            try:
                return function(row.data)
            except Exception as error:
                raise self.failed(error, row)

        return call

    def mapping(self, function: Callable[[Any], Any]) -> Callable[[Row], Row]:
        def call(row: Row) -> Row:
            try:
                row.data = function(row.data)
            except Exception as error:
                raise self.failed(error, row)
            return row

        return call

    def random_mapping(self, function: Callable[[Any, Any], Any]) -> Callable[[Row], Row]:
        def call(row: Row) -> Row:
            try:
                row.data = function(row.data, row.rng)
            except Exception as error:
                raise self.failed(error, row)
            return row

        return call


class _Position:
    """The state of a pipeline as far as records go."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def get_state(self) -> State:
        return {"next_index": self._reader.position}

    def set_state(self, state: State) -> None:
        self._reader.set_position(state["next_index"])


class _Batches(Iterator[Row]):
    def __init__(
        self,
        rows: Iterator[Row],
        batch_size: int,
        drop_remainder: bool,
        stage: _Stage,
        batch_fn: Callable[[Sequence[Any]], Any],
    ) -> None:
        self._rows = rows
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        self._stage = stage
        self._batch_fn = batch_fn

    def __next__(self) -> Row:
        elements = []
        last = None
        for _ in range(self._batch_size):
            last = next(self._rows, None)
            if last is None:
                break
            elements.append(last.data)
            kept = last
        if not elements or (last is None and self._drop_remainder):
            raise StopIteration
        try:
            return kept.batch(self._batch_fn(elements))
        except Exception as error:
            raise self._stage.failed(error, kept)


class _FlatMap(Iterator[Row]):
    """Its state is the one before the element that it is giving parts of, and how many it gave."""

    def __init__(self, rows: Iterator[Row], parent: _Position | _FlatMap, operation: Any, stage: _Stage) -> None:
        self._rows = rows
        self._parent = parent
        self._max_fan_out = operation.max_fan_out
        self._call = stage.calling(operation.flat_map)
        self._before = parent.get_state()
        self._parts: list[Row] = []
        self._given = 0

    def _split(self, row: Row) -> list[Row]:
        first = row.index * self._max_fan_out
        return [Row(part, first + number, None) for number, part in enumerate(self._call(row))]

    def __next__(self) -> Row:
        while self._given >= len(self._parts):
            self._before = self._parent.get_state()
            row = next(self._rows)
            self._given = 0
            self._parts = self._split(row)
        self._given += 1
        return self._parts[self._given - 1]

    def get_state(self) -> State:
        return {"parent": self._before, "next_index_in_buffer": self._given}

    def set_state(self, state: State) -> None:
        self._before = state["parent"]
        self._parent.set_state(self._before)
        self._parts, self._given = [], 0
        row = next(self._rows, None)
        if row is not None:
            self._parts, self._given = self._split(row), state["next_index_in_buffer"]


def _name(operation: Any, method: str) -> str:
    kind = type(operation).__qualname__
    return kind if method in ("batch", "operation") else f"{kind}.{method}"
