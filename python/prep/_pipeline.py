"""`MapDataset` and `IterDataset`: pipelines with Grain's names over those of Rust's (`_core.Stages`).

A dataset is a stage and its parents, which pickle. What runs is made of them in the process that iterates, with a table of its Python
functions: so after a fork or in another process it is made anew.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, cast, overload

from prep import _core
from prep._api import Order
from prep._api import open as _open
from prep._checks import whole
from prep._core import Dataset, Stages
from prep._spec import ArraySpec
from prep.errors import ClosedError, InvalidError, StateError, UnsupportedError
from prep.grain.sources import DataSource
from prep.transforms import Native

__all__ = ["DatasetIterator", "IterDataset", "MapDataset"]

T = TypeVar("T")
S = TypeVar("S")
Function = Callable[..., Any]
# Where a function is called and under which number; its name in states, and what its result depends on beside.
_Place = tuple[Function, int, str, str]
State = dict[str, Any]


class RandomAccess(Protocol):
    """Any object with a length and an element for each index below it."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class _Table:
    """The functions of one stream, by number."""

    def __init__(self, workers: int = 0, start_method: str | None = None) -> None:
        self._functions: list[Function] = []
        self._workers = workers
        self._start_method = start_method
        self._calls: Any = None
        self._closed = False
        # Threads that are in a function.
        self.running: set[int] = set()

    def add(self, function: Function, name: str, parameters: str) -> _Place:
        self._functions.append(function)
        return _Call(self), len(self._functions) - 1, name, parameters

    def start(self) -> None:
        """Once all functions are there, and from the thread that consumes."""
        if not self._functions:
            return
        from prep._pool import FunctionPool, LocalCalls

        self._calls = FunctionPool(self._functions, self._workers, self._start_method) if self._workers else LocalCalls(self._functions)
        self._calls.start()

    def call(self, function: int, elements: list[Any], keys: list[int] | None) -> list[Any]:
        if self._calls is None:
            self.start()
        if self._workers:
            return self._calls.call(function, elements, keys)  # type: ignore[no-any-return]
        thread = threading.get_ident()
        self.running.add(thread)
        try:
            return self._calls.call(function, self._until_closed(elements), keys)  # type: ignore[no-any-return]
        finally:
            self.running.discard(thread)

    def _until_closed(self, elements: list[Any]) -> Iterator[Any]:
        for element in elements:
            if self._closed:
                raise ClosedError("the stream was closed")
            yield element

    def close(self) -> None:
        """No function begins after this; those of worker processes end."""
        self._closed = True
        if self._calls is not None:
            self._calls.close()


class _Call:
    """Calls what is in a table, which it does not keep alive: the collector of garbage does not see into Rust, where this goes."""

    __slots__ = ("_table",)

    def __init__(self, table: _Table) -> None:
        self._table = weakref.ref(table)

    def __call__(self, function: int, elements: list[Any], keys: list[int] | None) -> list[Any]:
        table = self._table()
        if table is None:
            raise ClosedError("the stream was closed")
        return table.call(function, elements, keys)


@dataclasses.dataclass(frozen=True)
class _Stage:
    """A method of `Stages`, called on those of the parent, or on the class with all parents."""

    method: str
    arguments: tuple[Any, ...] = ()
    is_static: bool = False

    def make(self, parents: list[Stages], table: _Table) -> Stages:
        if self.is_static:
            return cast(Stages, getattr(Stages, self.method)(parents, *self.arguments))
        return cast(Stages, getattr(parents[0], self.method)(*self.arguments))


@dataclasses.dataclass(frozen=True)
class _Origin:
    """A method of `Stages` that has no parents."""

    method: str
    arguments: tuple[Any, ...]

    def make(self, parents: list[Stages], table: _Table) -> Stages:
        return cast(Stages, getattr(Stages, self.method)(*self.arguments))


@dataclasses.dataclass(frozen=True)
class _Calling:
    """A stage with a function."""

    method: str
    function: Function
    name: str
    parameters: str
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()

    def make(self, parents: list[Stages], table: _Table) -> Stages:
        place = table.add(self.function, self.name, self.parameters)
        return cast(Stages, getattr(parents[0], self.method)(*self.before, place, *self.after))


class _Chain:
    """Functions one after the other, in one call."""

    def __init__(self, functions: Sequence[Function], names: Sequence[str]) -> None:
        self._functions = functions
        self._names = names

    def __call__(self, element: Any) -> Any:
        number = 0
        try:
            for number, function in enumerate(self._functions):  # noqa: B007
                element = function(element)
        except Exception as error:
            error.add_note(f"in `{self._names[number]}`")
            raise
        return element


class _Listing:
    """A function whose result is gone through where it is called: that of a generator function does not leave its process."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self, element: Any) -> list[Any]:
        return [*self._function(element)]


class _WithIndex:
    """A function of index and element as one of a pair."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self, pair: tuple[int, Any]) -> Any:
        return self._function(*pair)


class _Base(Generic[T]):
    """What both kinds of dataset have in common."""

    def __init__(self, stage: _Stage | _Origin | _Calling, parents: Sequence[_Base[Any]] = (), **options: Any) -> None:
        self._stage = stage
        self._parents = tuple(parents)
        self._options: dict[str, Any] = {}
        for parent in reversed(self._parents):
            self._options.update(parent._options)
        self._options.update(options)
        self._seed: int | None = None
        self._made: tuple[int, Stages, _Table] | None = None
        # At once, so that what is wrong is told where it is written.
        self._stages()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def _stages(self) -> Stages:
        """The stages of this process, whose functions are called in the thread that asks."""
        if self._made is None or self._made[0] != os.getpid():
            stage, parents = self._chain() or (self._stage, self._parents)
            table = _Table()
            self._made = os.getpid(), stage.make([parent._stages() for parent in parents], table), table
        return self._made[1]

    def _make(self, table: _Table) -> Stages:
        """New stages, whose functions are in a table."""
        stage, parents = self._chain() or (self._stage, self._parents)
        return stage.make([parent._make(table) for parent in parents], table)

    def _chain(self) -> tuple[_Calling, tuple[_Base[Any], ...]] | None:
        """This stage and those before it that are maps too, as one."""
        maps: list[_Calling] = []
        node: _Base[Any] = self
        while isinstance(stage := node._stage, _Calling) and stage.method == "function" and stage.after == (None,):
            maps.insert(0, stage)
            (node,) = node._parents
        if len(maps) < 2:
            return None
        names = [stage.name for stage in maps]
        chain = _Chain([stage.function for stage in maps], names)
        parameters = ", ".join(filter(None, (stage.parameters for stage in maps)))
        return _Calling("function", chain, " | ".join(names), parameters, after=(None,)), (node,)

    def _then(self, stage: _Stage | _Calling, **options: Any) -> Self:
        return type(self)(stage, [self], **options)

    def _seed_or_default(self, seed: int | None, stage: str) -> int:
        """As Grain derives it from `seed` and the number of stages in between."""
        if seed is not None:
            return whole(seed, "seed")
        found: list[int] = []
        ahead: list[tuple[_Base[Any], int]] = [(self, 1)]
        while ahead:
            node, depth = ahead.pop(0)
            if node._seed is not None:
                found.extend((node._seed, depth))
            else:
                ahead.extend((parent, depth + 1) for parent in node._parents)
        if not found:
            raise InvalidError(f"`{stage}` needs a seed: give it one, or call `seed` on the dataset before")
        import numpy

        return int(numpy.random.SeedSequence(found).generate_state(1, numpy.uint32)[0])

    def seed(self, seed: int) -> Self:
        """Derives the seed of each random stage after it that is given none, as Grain does: from this one and the number of stages between.

        >>> dataset = MapDataset.range(4).seed(7).shuffle()
        >>> list(dataset) == list(MapDataset.range(4).seed(7).shuffle())
        True
        """
        seeded = type(self)(_Stage("same"), [self])
        seeded._seed = whole(seed, "seed")
        return seeded

    def map(self, transform: Any, *, name: str | None = None) -> Self:
        """Applies a function to each element, a transform of `prep.transforms`, or an object with a method `map`, as Grain's.

        >>> list(MapDataset.range(3).map(lambda number: number * 10))
        [0, 10, 20]

        Args:
            transform: It has to be a pure function: the stream goes on in other processes after a restore.
            name: Stands for it in states; default `module.qualname`.
        """
        if isinstance(transform, Native):
            return self._then(_Stage("transform", (type(transform).__name__, transform.parameters(), None)))
        function, named, parameters = _callable(transform, "map", name)
        return self._then(_Calling("function", function, named, parameters, after=(None,)))

    def random_map(self, transform: Any, *, seed: int | None = None, name: str | None = None) -> Self:
        """Applies a function of the element and a `numpy.random.Generator`.

        The generator is keyed by seed, `name` and the position of the element (ORDER.md, section 9): the same on each run, for any number of
        threads, workers and hosts, and another one in the next epoch.

        >>> noisy = MapDataset.range(3).random_map(lambda number, rng: number + rng.integers(100), seed=1)
        >>> list(noisy) == list(noisy)
        True

        Args:
            transform: A function, a random transform of `prep.transforms`, or an object with a method `random_map`, as Grain's.
            seed: Default: derived from that of `seed`.
            name: Stands for it in states and in the key; default `module.qualname`.
        """
        seed = self._seed_or_default(seed, "random_map")
        if isinstance(transform, Native):
            return self._then(_Stage("transform", (type(transform).__name__, transform.parameters(), seed)))
        function, named, parameters = _callable(transform, "random_map", name, "np_random_map")
        return self._then(_Calling("function", function, named, parameters, after=(seed,)))

    def map_with_index(self, transform: Any, *, name: str | None = None) -> Self:
        """Applies a function of the index and the element: the position in its epoch; on a stream the number of ORDER.md, section 10.

        >>> list(MapDataset.source(["a", "b"]).map_with_index(lambda index, text: f"{index}{text}"))
        ['0a', '1b']
        """
        function, named, parameters = _callable(transform, "map_with_index", name)
        return self._then(_Calling("function_with_index", _WithIndex(function), named, parameters))

    def filter(self, transform: Any, *, name: str | None = None) -> Self:
        """Keeps the elements for which a function gives true. Of native arrays it sees views that cannot be written to.

        In random access what is left out leaves `None` at its index, and the length stays. Iteration passes over it, in the order of virtual streams
        (`to_iter_dataset`): `to_iter_dataset(streams=1)` keeps the order of the indices. What depends on the position, as every second element
        does, may leave a virtual stream nothing: it is read to its end, or is an error where it has none. Shuffle before, or take one stream.

        >>> list(MapDataset.range(6).filter(lambda number: number % 2 == 0))
        [0, 2, 4]
        """
        function, named, parameters = _callable(transform, "filter", name)
        return self._then(_Calling("filter", function, named, parameters))

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Any]], Any] | None = None,
        stacking: Literal["equal", "padded", "ragged"] = "equal",
    ) -> Self:
        """Makes one element of `batch_size`: values are stacked, with a new first axis; dicts, lists, tuples keep their structure.

        Values in dicts that are numbers, arrays or `bytes` are stacked by Rust; `bytes` become an object array. Where this is the last stage, but
        for `map` and `repeat`, the rows of a batch are dealt to hosts: see `shard`.

        >>> [batch.tolist() for batch in MapDataset.range(5).batch(2)]
        [[0, 1], [2, 3], [4]]

        Args:
            batch_size: Elements of a batch, on this host.
            drop_remainder: Whether a last batch that is not full is left out. Else a host may have no row of it: then it has arrays without rows, or
                where Python functions or sequences come before an empty dict.
            batch_fn: Makes a batch of the list of elements.
            stacking: What becomes of arrays of several shapes in a dict: an error; `padded` with zeros to the largest; or a list of them (`ragged`).
                With the last two, values that are no arrays become a list too.
        """
        if stacking not in ("equal", "padded", "ragged"):
            raise InvalidError(f"`stacking` is {stacking!r}, wanted `equal`, `padded` or `ragged`")
        arguments = (whole(batch_size, "batch_size"), drop_remainder, stacking)
        if batch_fn is None:
            return self._then(_Stage("batch", (*arguments, None)))
        function, name, parameters = _callable(batch_fn, "batch_fn", None)
        return self._then(_Calling("batch", function, name, parameters, before=arguments))

    def window_shuffle(self, window_size: int, *, seed: int | None = None) -> Self:
        """Shuffles inside of windows; in random access also the windows: for data of which near records are read together.

        >>> sorted(MapDataset.range(10).window_shuffle(5, seed=1)) == list(range(10))
        True
        """
        return self._then(_Stage("window_shuffle", (whole(window_size, "window_size"), self._seed_or_default(seed, "window_shuffle"))))

    def apply(self, transformations: Any) -> Self:
        """Applies a transform by what it is: with a method `map`, `random_map`, `map_with_index`, `filter` or `flat_map`, or a `Batch`; or several.

        >>> from prep import grain
        >>> [batch.tolist() for batch in MapDataset.range(4).apply([grain.Batch(2)])]
        [[0, 1], [2, 3]]
        """
        dataset: Any = self
        listed = transformations if isinstance(transformations, (list, tuple)) else [transformations]
        for transform in listed:
            if hasattr(transform, "batch_size") and hasattr(transform, "batch_fn"):
                dataset = dataset.batch(transform.batch_size, drop_remainder=transform.drop_remainder, batch_fn=transform.batch_fn)
                continue
            for method in ("map", "random_map", "np_random_map", "map_with_index", "filter", "flat_map"):
                if hasattr(transform, method):
                    dataset = getattr(dataset, method.removeprefix("np_"))(transform)
                    break
            else:
                dataset = dataset.map(transform)
        return cast(Self, dataset)

    def pipe(self, func: Callable[..., S], /, *args: Any, **kwargs: Any) -> S:
        """`func(self, *args, **kwargs)`."""
        return func(self, *args, **kwargs)

    def options(
        self,
        *,
        num_threads: int | None = None,
        prefetch: int | None = None,
        prefetch_bytes: int | None = None,
        workers: int | None = None,
        start_method: str | None = None,
        on_error: str | None = None,
    ) -> Self:
        """Sets how the dataset is iterated. None of these changes the stream, but for damaged records that are left out.

        Args:
            num_threads: Of Rust, which read, decode, and call functions; 0: the thread that iterates. Default: as many as are needed, up to one per core.
            prefetch: Elements, or batches, made ahead, and what is being made beside. Default: two batches a thread, or as many small elements as
                keep threads busy.
            prefetch_bytes: A limit beside that. Default: 256 MiB.
            workers: Processes that Python functions run in. Default 0: they run in the threads, one at a time, as Python has it.
            start_method: `fork`, `spawn` or `forkserver`. Default: as `multiprocessing` has it, `fork` on Linux.
            on_error: What to do about a record that is damaged: `fail`, `skip` or `skip:MAX`; see `DatasetIterator.damaged`.
        """
        if start_method not in (None, "fork", "spawn", "forkserver"):
            raise InvalidError(f"`start_method` is {start_method!r}, wanted `fork`, `spawn` or `forkserver`")
        numbers = {"num_threads": num_threads, "prefetch": prefetch, "prefetch_bytes": prefetch_bytes, "workers": workers}
        given: dict[str, Any] = {name: whole(value, name) for name, value in numbers.items() if value is not None}
        given |= {name: value for name, value in (("start_method", start_method), ("on_error", on_error)) if value is not None}
        return self._then(_Stage("same"), **given)

    def shard(self, shard_index: int, shard_count: int) -> Self:
        """Iterates over the share of host `shard_index` of `shard_count`, as an option: a state that was saved fits any number of hosts.

        Hosts share the rows of each global batch, and take equal steps (ORDER.md, sections 5, 6 and 10); of single elements some hosts may have
        one more. A stream with a filter, or with another stage of which the length is not known, and with an end, is run once when it is opened, to count. A part
        for good is `dataset[index::count]`.

        >>> batches = MapDataset.range(8).batch(2)
        >>> [[batch.tolist() for batch in batches.shard(host, 2)] for host in range(2)]
        [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
        """
        return self._then(_Stage("same"), shard_index=whole(shard_index, "shard_index"), shard_count=whole(shard_count, "shard_count"))

    def mp_prefetch(self, options: Any = None, *, num_workers: int | None = None, start_method: str | None = None) -> Self:
        """Runs the Python functions in worker processes, as `options(workers=..)`: `options` is Grain's `MultiprocessingOptions`, or ours.

        Unlike Grain's, the stream is the same for any number of workers.
        """
        workers = num_workers if num_workers is not None else getattr(options, "num_workers", None)
        if workers is None:
            raise InvalidError("`mp_prefetch` needs `num_workers`, or options that have it")
        return self.options(workers=workers, start_method=start_method)

    @property
    def element_spec(self) -> Any:
        """Shape and dtype of each array of an element, in its structure; of what is no array its class.

        Where Python functions or sequences come before, it is read from the first element.

        >>> MapDataset.load("cifar10").element_spec["label"]
        ArraySpec(shape=(), dtype=dtype('int64'))
        """
        known = self._stages().element_spec
        return known if known is not None else _spec(self._first())

    def _first(self) -> Any:
        alone = {"workers": 0, "num_threads": 0, "shard_index": 0, "shard_count": 1}
        with self._then(_Stage("same"), **alone)._open() as iterator:
            for element in iterator:
                return element
        raise InvalidError("the dataset is empty: nothing is known of its elements")

    @property
    def stages(self) -> list[str]:
        """The pipeline's text, a line a stage: states are compared by it."""
        return self._stages().describe()

    def _open(self, state: State | str | Sequence[State | str] | None = None) -> DatasetIterator[T]:
        return DatasetIterator(self, state)

    def __iter__(self) -> DatasetIterator[T]:
        """The stream of one epoch of the dataset, or of as many as `repeat` says."""
        return self._open()

    def iter(self, state: State | str | Sequence[State | str] | None = None) -> DatasetIterator[T]:
        """The stream, from where a state was saved: that of any host in random access, and those of all of them on streams."""
        return self._open(state)

    def __repr__(self) -> str:
        return f"prep.{type(self).__name__}({'; '.join(map(str.strip, self.stages))})"


class MapDataset(_Base[T]):
    """A pipeline of random access: the element of an index is a function of it. Immutable; each method gives another.

    Nothing is read before an element is asked for, but for the first one by `pack` and `element_spec`. Beyond its length a dataset goes on with its next epoch, in which a shuffle has another order.

    >>> dataset = MapDataset.range(10).shuffle(seed=42).map(lambda number: number + 1).batch(4)
    >>> len(dataset), dataset[0].tolist()
    (3, [4, 5, 8, 1])
    >>> [batch.tolist() for batch in dataset]
    [[4, 5, 8, 1], [7, 3, 9, 6], [2, 10]]
    """

    @classmethod
    def source(
        cls,
        source: Dataset | RandomAccess | Sequence[Any],
        *,
        columns: Sequence[str] | None = None,
        decode: bool = True,
        identity: str | None = None,
    ) -> MapDataset[Any]:
        """The records of a `prep.Dataset`, or the elements of any sequence: a list, an `ArrayRecordDataSource`, an object of your own.

        >>> list(MapDataset.source([{"x": 1}, {"x": 2}]).map(lambda element: element["x"]))
        [1, 2]

        Args:
            source: A sequence is indexed from several threads. One with `__getitems__` gives several elements at once.
            columns: Of a dataset: the features to read.
            decode: Of a dataset: whether PNG pictures become pixels. Features that are declared JPEG stay bytes: see `prep.transforms.DecodeImage`.
            identity: Stands for a sequence in states, with its length; default its class.
        """
        if isinstance(source, DataSource) and source._decode:
            source = source.dataset
        if isinstance(source, Dataset):
            return MapDataset(_Origin("dataset", (source, None if columns is None else [*columns], decode)))
        kind = type(source)
        if columns is not None or not decode:
            raise InvalidError(f"`columns` and `decode` are for datasets of prep; the source is a {kind.__qualname__}")
        return MapDataset(_Origin("sequence", (source, identity or f"{kind.__module__}.{kind.__qualname__}")))

    @classmethod
    def load(
        cls,
        name: str,
        *,
        split: str = "train",
        columns: Sequence[str] | None = None,
        decode: bool = True,
        catalog: str | os.PathLike[str] | None = None,
    ) -> MapDataset[Any]:
        """The records of a dataset of the catalog: `source(prep.open(name, ..))`.

        >>> len(MapDataset.load("cifar10", split="test"))
        60
        """
        return cls.source(_open(name, split=split, catalog=catalog), columns=columns, decode=decode)

    @classmethod
    def range(cls, start: int, stop: int | None = None, step: int = 1) -> MapDataset[Any]:
        """The numbers of a `range`.

        >>> list(MapDataset.range(2, 9, 3))
        [2, 5, 8]
        """
        numbers = range(start) if stop is None else range(start, stop, step)
        return MapDataset(_Origin("range", (numbers.start, numbers.step, len(numbers))))

    @classmethod
    def mix(
        cls,
        datasets: Sequence[MapDataset[Any]],
        weights: Sequence[float] | None = None,
        *,
        stop: Literal["first", "all"] = "first",
        changes: Sequence[tuple[int, Sequence[float]]] = (),
    ) -> MapDataset[Any]:
        """Mixes datasets in proportion to weights.

        >>> list(MapDataset.mix([MapDataset.range(3), MapDataset.range(10, 20)], [1, 2]))
        [0, 10, 11, 1, 12, 13, 2, 14, 15]

        Args:
            datasets: Shuffle them before; empty ones are left out.
            weights: Default: equal ones.
            stop: With the `first` that is exhausted, or when `all` were seen as a whole, where shorter ones go on with their next epoch.
            changes: Positions from which other weights hold.
        """
        return MapDataset(_mixed(datasets, weights, stop, changes), _checked(datasets, MapDataset, "mix"))

    @classmethod
    def concatenate(cls, datasets: Sequence[MapDataset[Any]]) -> MapDataset[Any]:
        """One dataset after the other.

        >>> list(MapDataset.concatenate([MapDataset.range(2), MapDataset.range(5, 7)]))
        [0, 1, 5, 6]
        """
        return MapDataset(_Stage("concatenate", is_static=True), _checked(datasets, MapDataset, "concatenate"))

    @classmethod
    def zip(cls, datasets: Sequence[MapDataset[Any]]) -> MapDataset[Any]:
        """Tuples of the elements of the same index, as long as the shortest.

        >>> list(MapDataset.zip([MapDataset.range(2), MapDataset.source(["a", "b", "c"])]))
        [(0, 'a'), (1, 'b')]
        """
        return MapDataset(_Stage("zip", is_static=True), _checked(datasets, MapDataset, "zip"))

    def __len__(self) -> int:
        """Elements of an epoch; `sys.maxsize` where it has no end."""
        length = self._stages().length
        return sys.maxsize if length is None else length

    @overload
    def __getitem__(self, index: int) -> T | None: ...
    @overload
    def __getitem__(self, index: slice) -> MapDataset[T]: ...
    def __getitem__(self, index: int | slice) -> T | None | MapDataset[T]:
        """The element of an index: `None` where a filter left it out, an element of a later epoch beyond the length. Of a slice a dataset.

        >>> MapDataset.range(10)[3], list(MapDataset.range(10)[1::4])
        (3, [1, 5, 9])
        """
        if isinstance(index, slice):
            return self.slice(index)
        position = index.__index__()
        if position < 0 and len(self):
            position %= len(self)
        found = self._stages().get(position)
        return None if found is None else found[0]

    def slice(self, sl: slice) -> MapDataset[T]:
        """The elements of a slice, as `dataset[start:stop:step]`."""
        start, stop, step = sl.indices(len(self))
        if step < 0:
            raise UnsupportedError("a slice with a step below 0: take the elements in their order, or shuffle them")
        return self._then(_Stage("slice", (start, max(start, stop), step)))

    def shuffle(self, seed: int | None = None, *, order: Order = "prep") -> MapDataset[T]:
        """Another permutation each epoch.

        >>> list(MapDataset.range(6).shuffle(seed=1, order="grain"))
        [5, 2, 3, 0, 4, 1]

        Args:
            seed: 0 to 2**64 - 1; below 2**32 with `order="grain"`. Default: derived from that of `seed`.
            order: `prep` (ORDER.md, section 2); `grain`: that of Grain's `shuffle` with the same seed; or `window:N`, as `prep.load` has it.
        """
        return self._then(_Stage("shuffle", (order, self._seed_or_default(seed, "shuffle"))))

    def repeat(self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True) -> MapDataset[T]:
        """Epochs one after the other; without a number there is no end.

        >>> list(MapDataset.range(3).repeat(2))
        [0, 1, 2, 0, 1, 2]

        Args:
            num_epochs: How many.
            reseed_each_epoch: Whether each is in another order.
        """
        return self._then(_Stage("repeat", (None if num_epochs is None else whole(num_epochs, "num_epochs"), reseed_each_epoch)))

    def cache(self, num_bytes: int = 1 << 30) -> MapDataset[T]:
        """Keeps elements in memory, as many as fit. Does not change the stream; goes before what is shuffled or random.

        A record's arrays are copied for each that they are given to. What Python made is the same object each time: do not change it in place.
        """
        return self._then(_Stage("cache", (whole(num_bytes, "num_bytes"),)))

    def to_iter_dataset(self, read_options: Any = None, *, allow_nones: bool = False, streams: int | None = None) -> IterDataset[T]:
        """Goes on as a stream: gaps of filters are closed, and stages that give more or fewer elements can follow.

        >>> list(MapDataset.range(6).filter(lambda number: number > 2).to_iter_dataset().batch(2))[0].tolist()
        [3, 4]

        Args:
            read_options: Grain's `ReadOptions`, or ours: its `num_threads` is taken. What is made ahead is bounded by bytes: see `options`.
            allow_nones: Not supported.
            streams: Virtual streams that the elements are dealt to (ORDER.md, section 10); 1 keeps their order whatever follows. Default 48.
        """
        if allow_nones:
            raise UnsupportedError("`allow_nones`: elements that a filter left out are not kept")
        threads = getattr(read_options, "num_threads", None)
        return IterDataset(_Stage("to_iter", (None if streams is None else whole(streams, "streams"),)), [self], **({} if threads is None else {"num_threads": whole(threads, "num_threads")}))

    def flat_map(self, transform: Any, *, name: str | None = None) -> IterDataset[Any]:
        """As `IterDataset.flat_map`."""
        return self.to_iter_dataset().flat_map(transform, name=name)


class IterDataset(_Base[T]):
    """A streaming pipeline. Immutable; each method gives another.

    Its elements come from a fixed number of virtual streams that are merged round robin, so that they are the same for any number of hosts,
    threads and workers: ORDER.md, section 10. Made by `MapDataset.to_iter_dataset`.
    """

    @classmethod
    def mix(
        cls,
        datasets: Sequence[IterDataset[Any]] | Mapping[str, IterDataset[Any]],
        weights: Sequence[float] | Mapping[str, float] | None = None,
        *,
        stop: Literal["first", "all"] = "first",
    ) -> IterDataset[Any]:
        """Mixes streams in proportion to weights, each virtual stream for itself.

        >>> ones, twos = (MapDataset.source([number] * 4).to_iter_dataset(streams=1) for number in (1, 2))
        >>> list(IterDataset.mix([ones, twos], [1, 1]))
        [1, 2, 1, 2, 1, 2, 1, 2]
        """
        if isinstance(datasets, Mapping):
            names = [*datasets]
            if isinstance(weights, Mapping):
                weights = [weights[name] for name in names]
            datasets = [datasets[name] for name in names]
        return IterDataset(_mixed(datasets, cast("Sequence[float] | None", weights), stop, ()), _checked(datasets, IterDataset, "mix"))

    @classmethod
    def interleave(cls, datasets: Sequence[IterDataset[Any]], *, cycle_length: int) -> IterDataset[Any]:
        """One element of each of `cycle_length` datasets in turn; where one ends, the next one takes its place.

        >>> parts = [MapDataset.range(start, start + 2).to_iter_dataset(streams=1) for start in (0, 10, 20)]
        >>> list(IterDataset.interleave(parts, cycle_length=2))
        [0, 10, 1, 11, 20, 21]
        """
        return IterDataset(_Stage("interleave", (whole(cycle_length, "cycle_length"),), is_static=True), _checked(datasets, IterDataset, "interleave"))

    def _then(self, stage: _Stage | _Calling, **options: Any) -> Self:
        # What looks at nothing but the element comes before the stream, where it is called by the chunk.
        maps = isinstance(stage, _Calling) and (stage.method, stage.after) in (("function", (None,)), ("filter", ()))
        maps = maps or isinstance(stage, _Stage) and stage.method == "transform" and stage.arguments[-1] is None
        if maps and isinstance(self._stage, _Stage) and self._stage.method == "to_iter":
            return type(self)(self._stage, [self._parents[0]._then(stage)], **self._options)
        return super()._then(stage, **options)

    def flat_map(self, transform: Any, *, name: str | None = None) -> IterDataset[Any]:
        """Gives the elements that a function makes of each, one by one.

        >>> list(MapDataset.range(4).to_iter_dataset(streams=1).flat_map(lambda number: [number] * number))
        [1, 2, 2, 3, 3, 3]
        """
        function, named, parameters = _callable(transform, "flat_map", name)
        return self._then(_Calling("flat_map", _Listing(function), named, parameters))

    def pack(
        self,
        length_struct: Mapping[str, Any],
        *,
        packing: Literal["first_fit", "best_fit", "concat_then_split"] = "first_fit",
        num_packing_bins: int = 64,
        seed: int = 0,
        shuffle_bins: bool = False,
        meta_features: Sequence[str] = (),
        drop_remainder: bool = False,
    ) -> IterDataset[Any]:
        """Packs sequences of varying length into rows: of `tokens` come `tokens`, `tokens_segment_ids` and `tokens_positions`.

        >>> import numpy
        >>> texts = MapDataset.source([{"tokens": numpy.ones(length, numpy.int32)} for length in (3, 4, 2)])
        >>> rows = texts.to_iter_dataset(streams=1).pack({"tokens": 6}, num_packing_bins=2)
        >>> [row["tokens_segment_ids"].tolist() for row in rows]
        [[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]]

        Args:
            length_struct: What is packed, and the length of a row of it.
            packing: Which row a sequence goes into (ORDER.md, section 14): the first with room; the one that it fills best; or one after the other,
                split where a row is full.
            num_packing_bins: Rows that are open at a time, in each virtual stream.
            seed: Of `shuffle_bins`.
            shuffle_bins: Whether rows that are full together are given in random order.
            meta_features: Values that are kept as a list for each row.
            drop_remainder: Leaves out what is in the rows when the stream ends.
        """
        lengths = [("/".join(path), whole(length, "/".join(path))) for path, length in _leaves(length_struct)]
        arguments = (packing, whole(num_packing_bins, "num_packing_bins"), lengths, [*meta_features], seed if shuffle_bins else None, drop_remainder)
        known = self if self._stages().element_spec is not None else self._known([name for name, _ in lengths], meta_features)
        return IterDataset(_Stage("pack", arguments), [known])

    def _known(self, packed: Sequence[str], others: Sequence[str]) -> IterDataset[T]:
        """The same, said to have arrays as the first element has."""
        import numpy

        first = self._first()
        fields = []
        for name in (*packed, *others):
            try:
                array = numpy.asarray(functools.reduce(lambda value, key: value[key], name.split("/"), first))
            except (KeyError, TypeError, IndexError):
                raise InvalidError(f"the first element has no value `{name}` to pack") from None
            shape: list[int | None] = [None if name in others or number == 0 else size for number, size in enumerate(array.shape)]
            fields.append((name, "string" if array.dtype.kind in "OSU" else array.dtype.name, shape))
        return self._then(_Stage("with_spec", (fields,)))

    def unbatch(self) -> IterDataset[Any]:
        """The rows of batches one by one."""
        return self._then(_Stage("unbatch"))

    def rebatch(self, batch_size: int, *, drop_remainder: bool = False) -> IterDataset[Any]:
        """Makes batches of another size of batches.

        >>> batches = MapDataset.range(7).batch(3).to_iter_dataset(streams=1)
        >>> [batch.tolist() for batch in batches.rebatch(2)]
        [[0, 1], [2, 3], [4, 5], [6]]
        """
        return self.unbatch().batch(batch_size, drop_remainder=drop_remainder)

    def prefetch(self, multiprocessing_options: Any = None, *, elements: int | None = None) -> IterDataset[T]:
        """Makes `elements`, or batches, ahead: `options(prefetch=..)`. With Grain's `MultiprocessingOptions`: `mp_prefetch`."""
        if isinstance(multiprocessing_options, int):
            multiprocessing_options, elements = None, multiprocessing_options
        if multiprocessing_options is not None:
            return self.mp_prefetch(multiprocessing_options)
        return self.options(prefetch=elements)


class DatasetIterator(Iterator[T]):
    """The stream of a dataset's elements. Close it, use it in `with`, or drop it: its threads and processes end.

    In the child of a fork it goes on where it stood, with threads of the child's; so does one that was pickled.
    """

    takes_states_of_all_hosts = True
    """`set_state` also takes the states of all hosts, to go on with another number of them."""

    def __init__(self, dataset: _Base[T], state: State | str | Sequence[State | str] | None = None) -> None:
        self._dataset = dataset
        self._closed = False
        self._start([] if state is None else _states(state))
        _live.add(self)

    def _start(self, states: list[str]) -> None:
        options = dict(self._dataset._options)
        table = _Table(options.pop("workers", 0), options.pop("start_method", None))
        try:
            stages = self._dataset._make(table)
            table.start()
            stream = stages.load(options, states)
        except BaseException:
            table.close()
            raise
        self._table, self._stream, self._process = table, stream, os.getpid()

    def _here(self) -> _core.Stream:
        """The stream of this process."""
        if self._closed:
            raise ClosedError("the iterator is closed")
        if self._process != os.getpid():
            self._start([self._stream.state()])
        return self._stream

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        stream = self._stream if self._process == os.getpid() and not self._closed else self._here()
        found = stream.next()
        if found is None:
            raise StopIteration
        element = found[0]
        if type(element) is dict and not element and self._dataset._options.get("shard_count", 1) > 1:
            # The last batch of all hosts has no row for this one. What a function makes of rows shows in one that has some.
            from prep._batch import without_rows

            element = without_rows(self._dataset._first())
        return cast(T, element)

    def get_state(self) -> State:
        """Where the consumer stands, as small JSON-able dict: after the last element that was given, whatever was made ahead."""
        return cast(State, json.loads(self._here().state()))

    def set_state(self, state: State | str | Sequence[State | str]) -> None:
        """Goes on where a state was saved; after a change of the number of hosts, of all their states.

        >>> iterator = iter(MapDataset.range(5).shuffle(seed=1))
        >>> first, state, rest = next(iterator), iterator.get_state(), list(iterator)
        >>> iterator.set_state(state)
        >>> list(iterator) == rest
        True

        Raises:
            StateError: It is of another pipeline; the stage that differs is named.
        """
        states = _states(state)
        if self._closed:
            raise ClosedError("the iterator is closed")
        old_stream, old_table, was_ours = self._stream, self._table, self._process == os.getpid()
        self._start(states)
        if was_ours:
            old_table.close()
            old_stream.close()

    def state(self) -> State:
        """As `get_state`."""
        return self.get_state()

    def restore(self, state: State | str | Sequence[State | str]) -> None:
        """As `set_state`."""
        self.set_state(state)

    def skip(self, steps: int) -> None:
        """Goes past some elements, or batches: at once in random access; streams are read."""
        self._here().skip(whole(steps, "steps"))

    def metrics(self) -> dict[str, Any]:
        """What was done so far, and where the time went, stage by stage; `limit` is the stage that limits, `advice` what would help."""
        return self._here().metrics()

    def damaged(self) -> list[str]:
        """The records that `on_error` left out between the element before and the last one."""
        return self._here().damaged()

    def start_prefetch(self) -> None:
        """Starts the threads now and not with the first element."""
        self._here().start()

    @property
    def element_spec(self) -> Any:
        """As that of the dataset."""
        return self._dataset.element_spec

    def close(self) -> None:
        """Ends threads and processes, once they are through with the element that they are at. Elements that were given stay."""
        if not self._closed:
            self._closed = True
            if self._process == os.getpid():
                self._table.close()
                self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Perhaps it was never opened.
        if getattr(self, "_process", None) == os.getpid():
            self._table.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._closed:
            raise ClosedError("the iterator is closed")
        return DatasetIterator, (self._dataset, self.get_state())

    def __repr__(self) -> str:
        return f"prep.DatasetIterator({self._dataset!r})"


_live: weakref.WeakSet[DatasetIterator[Any]] = weakref.WeakSet()
# How long functions may go on at exit, before they are interrupted, and then before they are left.
_EXIT_GRACE_S = 0.2
_EXIT_LIMIT_S = 1.0


@atexit.register
def _end_all() -> None:
    """At exit no thread may be in a function any more: the interpreter goes."""
    iterators = [*_live]
    for iterator in iterators:
        if iterator._process == os.getpid() and not iterator._closed:
            iterator._closed = True
            iterator._table.close()
    for iterator in iterators:
        if iterator._process != os.getpid():
            continue
        if not iterator._stream.close_within(_EXIT_GRACE_S):
            _interrupt(iterator._table.running)
            iterator._stream.close_within(_EXIT_LIMIT_S)


def _interrupt(threads: set[int]) -> None:
    import ctypes

    for thread in [*threads]:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))


def _checked(datasets: Sequence[Any], kind: type[_Base[Any]], method: str) -> Sequence[Any]:
    for number, dataset in enumerate(datasets):
        if not isinstance(dataset, kind):
            hint = ": give it `to_iter_dataset()`" if isinstance(dataset, MapDataset) else ""
            raise InvalidError(f"dataset {number} of `{kind.__name__}.{method}` is a {type(dataset).__qualname__}, wanted {kind.__name__}{hint}")
    if len(shards := {(dataset._options.get("shard_index"), dataset._options.get("shard_count")) for dataset in datasets}) > 1:
        raise InvalidError(f"the datasets of `{kind.__name__}.{method}` have different shards, {sorted(shards, key=str)}: call `shard` on what comes of them")
    return datasets


def _mixed(datasets: Sequence[Any], weights: Sequence[float] | None, stop: str, changes: Sequence[tuple[int, Sequence[float]]]) -> _Stage:
    if stop not in ("first", "all"):
        raise InvalidError(f"`stop` is `{stop}`, wanted `first` or `all`")
    own = [1.0] * len(datasets) if weights is None else [float(weight) for weight in weights]
    later = [(whole(position, "changes"), [float(weight) for weight in other]) for position, other in changes]
    return _Stage("mix", (own, stop == "all", later), is_static=True)


def _callable(transform: Any, method: str, name: str | None, *others: str) -> tuple[Function, str, str]:
    """The function of a transform, its name, and what its result depends on beside."""
    bound = next((getattr(transform, own) for own in (method, *others) if hasattr(transform, own)), None)
    function = bound if bound is not None else transform
    if not callable(function):
        raise TypeError(f"{transform!r} is no function, and has no method `{method}`")
    parameters = ""
    named: Any = transform
    if isinstance(transform, functools.partial):
        named = transform.func
        parameters = ", ".join([*map(repr, transform.args), *(f"{key}={value!r}" for key, value in transform.keywords.items())])
    elif dataclasses.is_dataclass(transform) and not isinstance(transform, type):
        parameters = repr(transform)
    if " at 0x" in parameters or len(parameters) > 500:
        # Not the same in another process, or not for people to read.
        parameters = ""
    if not hasattr(named, "__qualname__"):
        named = type(named)
    return function, name or f"{named.__module__}.{named.__qualname__}", parameters


def _states(state: State | str | Sequence[State | str]) -> list[str]:
    if isinstance(state, (str, bytes, Mapping)):
        state = [state]
    states = [own if isinstance(own, str) else own.decode() if isinstance(own, bytes) else json.dumps(own) for own in state]
    if not states:
        raise StateError("no state is given")
    return states


def _leaves(struct: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in struct.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _spec(element: Any) -> Any:
    import numpy

    if isinstance(element, Mapping):
        return {name: _spec(value) for name, value in element.items()}
    if isinstance(element, (list, tuple)):
        parts = [_spec(value) for value in element]
        return type(element)(*parts) if hasattr(element, "_fields") else type(element)(parts)
    if isinstance(element, (bool, int, float, complex, numpy.ndarray, numpy.generic)):
        array = numpy.asarray(element)
        return ArraySpec(array.shape, array.dtype)
    return type(element)
