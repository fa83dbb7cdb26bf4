"""Which record comes when: samplers say it for each global index of the stream."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any, Generic, Optional, Protocol, TypeVar

from prep.errors import InvalidError, OutOfRangeError
from prep.grain.sharding import NoSharding, ShardOptions, span

if TYPE_CHECKING:
    import numpy

    from prep.grain._shuffle import Array

__all__ = ["IndexSampler", "Record", "RecordMetadata", "Sampler", "SequentialSampler"]

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class RecordMetadata:
    """A record in the stream: its global index, its number in the source, and the generator that its random transforms share."""

    index: int
    record_key: Optional[int] = None
    rng: Optional[numpy.random.Generator] = None

    def remove_record_key(self) -> RecordMetadata:
        """The same without the number in the source, which a batch has not."""
        return self if self.record_key is None else dataclasses.replace(self, record_key=None)


@dataclasses.dataclass(slots=True)
class Record(Generic[T]):
    """What an `Operation` is given and gives: an element and where it comes from."""

    metadata: RecordMetadata
    data: T


class Sampler(Protocol):
    """A class of one's own as a sampler: an endless one or, with an `IndexError` past its end, a finite one."""

    def __getitem__(self, index: int) -> RecordMetadata: ...


class _Keyed:
    """What both samplers do: bounds, and metadata from keys that are computed in blocks."""

    _num_records: int
    _seed: Optional[int]

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def block_size(self) -> int:
        """For how many indices to ask at a time. Each call costs some 0.1 ms; over a few records, many indices would be many epochs."""
        return min(max(16, self._num_records // 8), 8192)

    def keys(self, indices: Array) -> Array:
        """The records at many global indices, not checked."""
        raise NotImplementedError

    def generator(self, index: int) -> Optional[numpy.random.Generator]:
        """A fresh generator for a global index: that of `numpy.random.Philox(key=seed + index)`."""
        if self._seed is None:
            return None
        from prep._generators import philox

        return philox(self._seed + index)

    def __getitem__(self, index: int) -> RecordMetadata:
        if not 0 <= index < len(self):
            raise OutOfRangeError(f"index {index} of a sampler of length {len(self)}")
        import numpy

        key = int(self.keys(numpy.array([index], numpy.int64))[0])
        return RecordMetadata(index=index, record_key=key, rng=self.generator(index))


class SequentialSampler(_Keyed):
    """All records in the order of the source, once.

    >>> SequentialSampler(10)[3].record_key
    3

    Args:
        num_records: Records in the source.
        shard_options: Shares of the stream; see `DataLoader`.
        seed: Gives random transforms their generators.
    """

    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),
        seed: Optional[int] = None,
    ) -> None:
        _check_records(num_records)
        self._num_records = num_records
        self._shard_options = shard_options
        self._seed = seed
        remainder = num_records % shard_options.shard_count if shard_options.drop_remainder else 0
        self._length = num_records - remainder

    def __len__(self) -> int:
        return self._length

    def keys(self, indices: Array) -> Array:
        return indices

    def __repr__(self) -> str:
        return f"SequentialSampler(num_records={self._num_records}, shard_options={self._shard_options!r})"


class IndexSampler(_Keyed):
    """The records of this process' share, shuffled anew in each epoch.

    >>> sampler = IndexSampler(5, shuffle=True, seed=42, num_epochs=1)
    >>> [sampler[index].record_key for index in range(len(sampler))]
    [4, 1, 2, 3, 0]

    Args:
        num_records: Records in the source.
        shard_options: Share of this process.
        shuffle: Whether the order is Grain's permutation of a share (constant memory, whatever the length).
        num_epochs: Epochs; endless by default.
        seed: 0 to 2^32 - 1: the order, and the generators of random transforms.
    """

    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),
        shuffle: bool = False,
        num_epochs: Optional[int] = None,
        seed: Optional[int] = None,
    ) -> None:
        _check_records(num_records)
        if num_epochs is not None and num_epochs <= 0:
            raise InvalidError(f"`num_epochs` is {num_epochs}, wanted at least 1, or None for an endless stream")
        if shuffle and seed is None:
            raise InvalidError("`shuffle=True` needs a `seed`")
        if shuffle and not isinstance(seed, int):
            raise TypeError(f"`seed` is {type(seed).__name__}, wanted int")
        if seed is not None and not 0 <= seed < 1 << 32:
            raise InvalidError(f"`seed` is {seed}, wanted 0 to 4294967295")
        self._num_records = num_records
        self._shard_options = shard_options
        self._shuffle = shuffle
        self._num_epochs = num_epochs
        self._seed = seed
        self._start, end = span(num_records, shard_options)
        self._share = end - self._start

    def __len__(self) -> int:
        if self._num_epochs is None:
            return sys.maxsize
        whole = self._num_epochs * self._num_records
        even = self._num_epochs * self._share * self._shard_options.shard_count
        return min(whole, even) if self._shard_options.drop_remainder else whole

    def keys(self, indices: Array) -> Array:
        positions = indices // self._shard_options.shard_count
        if self._shuffle:
            from prep.grain._shuffle import shuffled

            return self._start + shuffled(positions, self._share, self._seed or 0)
        if not self._share:
            raise InvalidError(f"shard {self._shard_options.shard_index} of {self._num_records} records is empty; use fewer shards")
        return self._start + positions % self._share

    def __repr__(self) -> str:
        return (
            f"IndexSampler(num_records={self._num_records}, shard_options={self._shard_options!r}, "
            f"shuffle={self._shuffle}, num_epochs={self._num_epochs}, seed={self._seed})"
        )


def _check_records(num_records: int) -> None:
    if num_records <= 0:
        raise InvalidError(f"`num_records` is {num_records}, wanted at least 1")


def computes_keys(sampler: Any) -> bool:
    """Whether a sampler is one of ours whose records may be computed in blocks; a class derived from it may say otherwise."""
    return isinstance(sampler, _Keyed) and type(sampler).__getitem__ is _Keyed.__getitem__


def length(sampler: Any) -> int:
    """Of a sampler without `__len__`, it is found by bisection."""
    if hasattr(sampler, "__len__"):
        return len(sampler)
    low, high = 0, sys.maxsize
    while low < high:
        middle = (low + high) // 2
        try:
            sampler[middle]
        except IndexError:
            high = middle
        else:
            low = middle + 1
    return low
