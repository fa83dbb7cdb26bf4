"""Data sources: what has a length and gives records by index, for our `DataLoader` and for Grain's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, SupportsIndex, runtime_checkable

from prep._api import open as _open
from prep._array_record import ArrayRecordDataSource
from prep._core import Dataset
from prep.errors import InvalidError, OutOfRangeError

__all__ = ["ArrayRecordDataSource", "DataSource", "RandomAccessDataSource", "RangeDataSource"]


@runtime_checkable
class RandomAccessDataSource(Protocol):
    """What a loader reads from: any object with a length, and a record for each index below it."""

    def __len__(self) -> int: ...

    def __getitem__(self, record_key: SupportsIndex, /) -> Any: ...


class DataSource:
    """A split of a dataset as a Grain `RandomAccessDataSource`.

    An element is a dict of arrays, NumPy scalars and `bytes`, as `tfds.data_source` gives it. A lookup costs the same whatever the size
    of a shard. Pickles as name, version, split and catalog (a few hundred bytes), so worker processes open the dataset themselves, and
    all of them the version that was opened first.

    >>> source = DataSource("cifar10", split="test")
    >>> len(source), source[0]["image"].shape
    (60, (32, 32, 3))
    >>> source
    prep.grain.DataSource('cifar10:3.0.2', split='test', decode=True)

    Args:
        name: `name`, `name/config`, `name:version`, `name@tag`.
        split: As TFDS reads it: `train`, `train[:80%]`, `train+test`.
        decode: Whether elements are decoded; else they are the stored records, serialized `tf.train.Example`s, as `bytes`.
        catalog: Folder or URL; default `$PREP_CATALOG`, else a folder under `$PREP_HOME`.
    """

    def __init__(
        self,
        name: str,
        *,
        split: str = "train",
        decode: bool = True,
        catalog: str | os.PathLike[str] | None = None,
    ) -> None:
        self._dataset = _open(name, split=split, catalog=catalog)
        self._decode = decode

    @property
    def dataset(self) -> Dataset:
        """The dataset, with `features`, `element_spec`, `fingerprint`."""
        return self._dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, record_key: SupportsIndex) -> Any:
        index = record_key.__index__()
        return self._dataset[index] if self._decode else self._dataset.record(index)

    def __getitems__(self, record_keys: Iterable[SupportsIndex]) -> list[Any]:
        return self._dataset.elements(record_keys) if self._decode else self._dataset.records(record_keys)

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    def __repr__(self) -> str:
        return f"prep.grain.DataSource({self._dataset.name!r}, split={self._dataset.split!r}, decode={self._decode})"


class RangeDataSource:
    """The numbers of a `range`, as records: for tests and for indices.

    >>> source = RangeDataSource(10, 20, 5)
    >>> len(source), source[1]
    (2, 15)
    """

    def __init__(self, start: int, stop: int, step: int) -> None:
        if step == 0:
            raise InvalidError("the step of a range is 0, wanted another number")
        self._range = range(start, stop, step)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, record_key: SupportsIndex) -> int:
        index = record_key.__index__()
        if not 0 <= index < len(self._range):
            raise OutOfRangeError(f"record {index} of a range of {len(self._range)}")
        return self._range[index]

    def __repr__(self) -> str:
        # As Grain says it: the text is stored in states and compared.
        return f"RangeDataSource(start={self._range.start}, stop={self._range.stop}, step={self._range.step})"
