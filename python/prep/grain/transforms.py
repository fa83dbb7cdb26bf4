"""Transforms of elements: classes to derive from."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Union

from prep.grain.samplers import Record

if TYPE_CHECKING:
    import numpy

__all__ = [
    "Batch",
    "Filter",
    "FilterOperation",
    "FlatMap",
    "Map",
    "MapOperation",
    "MapWithIndex",
    "Operation",
    "RandomMap",
    "RandomMapOperation",
    "TfRandomMap",
    "Transformation",
    "Transformations",
]


class Map(abc.ABC):
    """One element from one."""

    @abc.abstractmethod
    def map(self, element: Any) -> Any:
        """Gives what stands for the element from here on."""


class RandomMap(abc.ABC):
    """One element from one, with a generator that depends on the seed and the element's place in the stream only.

    The generator is that of the record: random transforms one after the other draw from it in turn.
    """

    @abc.abstractmethod
    def random_map(self, element: Any, rng: numpy.random.Generator) -> Any:
        """Gives what stands for the element from here on."""


class TfRandomMap(abc.ABC):
    """`RandomMap` under an older name of the method."""

    @abc.abstractmethod
    def np_random_map(self, element: Any, rng: numpy.random.Generator) -> Any:
        """Gives what stands for the element from here on."""


class MapWithIndex(abc.ABC):
    """One element from one and its index in the dataset: for `MapDataset.map_with_index`, not for a `DataLoader`."""

    @abc.abstractmethod
    def map_with_index(self, index: int, element: Any) -> Any:
        """Gives what stands for the element from here on."""


class Filter(abc.ABC):
    """Some of the elements."""

    @abc.abstractmethod
    def filter(self, element: Any) -> bool:
        """Tells whether the element stays."""


class FlatMap(abc.ABC):
    """Up to `max_fan_out` elements from one."""

    max_fan_out: int

    @abc.abstractmethod
    def flat_map(self, element: Any) -> Sequence[Any]:
        """Gives the elements that stand for this one from here on."""


@dataclasses.dataclass(frozen=True)
class Batch:
    """`batch_size` elements as one: their arrays stacked, a new first axis; or what `batch_fn` makes of the list of them.

    Each worker makes batches of its own elements, and with `drop_remainder` leaves its own last ones out.
    """

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None


@dataclasses.dataclass
class MapOperation(Map):
    """`Map` of a function."""

    map_function: Callable[[Any], Any]

    def map(self, element: Any) -> Any:
        return self.map_function(element)


@dataclasses.dataclass
class RandomMapOperation(RandomMap):
    """`RandomMap` of a function."""

    random_map_function: Callable[[Any, numpy.random.Generator], Any]

    def random_map(self, element: Any, rng: numpy.random.Generator) -> Any:
        return self.random_map_function(element, rng)


@dataclasses.dataclass
class FilterOperation(Filter):
    """`Filter` by a function."""

    condition_function: Callable[[Any], bool]

    def filter(self, element: Any) -> bool:
        return self.condition_function(element)


class Operation(Protocol):
    """Any callable from an iterator of records to one."""

    def __call__(self, input_iterator: Iterator[Record[Any]], /) -> Iterator[Record[Any]]: ...


Transformation = Union[Batch, Map, RandomMap, TfRandomMap, Filter, FlatMap]
Transformations = Sequence[Transformation]
