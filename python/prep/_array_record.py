"""`ArrayRecordDataSource`: the class of that name of the package `array_record`, with lookups that cost the same whatever the file's size."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, SupportsIndex, TypeAlias, Union, runtime_checkable

from prep import _core
from prep.errors import InvalidError, NotFoundError

_RANGE = re.compile(r"(.*)\[(\d+):(\d+)\]", re.DOTALL)


@runtime_checkable
class FileInstruction(Protocol):
    """A part of a file, as TFDS describes it: `take` records from `skip` on."""

    filename: Any
    skip: int
    take: int
    examples_in_shard: int


PathLikeOrFileInstruction: TypeAlias = Union[str, "os.PathLike[str]", FileInstruction]


def _parts(paths: PathLikeOrFileInstruction | Sequence[PathLikeOrFileInstruction]) -> list[tuple[str, tuple[int, int] | None]]:
    if isinstance(paths, (str, os.PathLike, FileInstruction)):
        paths = [paths]
    elif not isinstance(paths, Sequence):
        raise InvalidError(f"paths are {type(paths).__name__}, wanted a path, a FileInstruction, or a sequence of those")
    if not paths:
        raise InvalidError("the sequence of paths is empty")
    parts: list[tuple[str, tuple[int, int] | None]] = []
    for path in paths:
        if isinstance(path, FileInstruction):
            parts.append((os.fspath(path.filename), (path.skip, path.skip + path.take)))
        elif not isinstance(path, (str, os.PathLike)):
            raise InvalidError(f"a path is {type(path).__name__}, wanted str, pathlib.Path or FileInstruction")
        elif found := _RANGE.fullmatch(os.fspath(path)):
            parts.append((found[1], (int(found[2]), int(found[3]))))
        else:
            parts += [(name, None) for name in _expand(os.fspath(path))]
    return parts


def _expand(path: str) -> list[str]:
    if not any(c in path for c in "*?[") or "://" in path or os.path.exists(path):
        return [path]
    names = sorted(glob.glob(path))
    if not names:
        raise NotFoundError(f"no file matches `{path}`")
    return names


class ArrayRecordDataSource(_core.RecordFiles):
    """Random access to the records of ArrayRecord files, one index over all of them.

    Takes what the class of this name in `array_record` takes, and is a Grain `RandomAccessDataSource`: a path or a list of them,
    `path[start:end]`, objects with `filename`, `skip`, `take` and `examples_in_shard`, and also a glob. Files whose range is given are
    opened when first read; the others are opened once to count their records (0.1 ms each). A lookup costs about the same in a file of
    100 and of 100 million records. Hashes are checked. Pickles by path; closing (`with`) lets go of the files.

    >>> source = ArrayRecordDataSource("tests/data/words.array_record")
    >>> len(source), source[1], source.__getitems__([2, 0])
    (3, b'beta', [b'gamma', b'alpha'])

    Args:
        paths: The files.
        reader_options: Accepted for compatibility, and not needed: the index is small and in memory.
    """

    __slots__ = ("__dict__", "__weakref__")

    def __new__(
        cls,
        paths: PathLikeOrFileInstruction | Sequence[PathLikeOrFileInstruction],
        reader_options: dict[str, str] | None = None,
    ) -> ArrayRecordDataSource:
        return super().__new__(cls, _parts(paths))

    def __init__(
        self,
        paths: PathLikeOrFileInstruction | Sequence[PathLikeOrFileInstruction],
        reader_options: dict[str, str] | None = None,
    ) -> None:
        pass

    @property
    def paths(self) -> list[str]:
        """The files, in order."""
        return [path for path, _, _ in self.parts]

    def __iter__(self) -> Iterator[bytes]:
        for index in range(len(self)):
            yield self[index]

    def __enter__(self) -> ArrayRecordDataSource:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.parts, self.__dict__ or None)

    def __repr__(self) -> str:
        # As `array_record` says it: Grain stores this text in checkpoints and compares it.
        digest = hashlib.sha1(usedforsecurity=False)
        for path in self.paths:
            digest.update(path.encode())
        return f"ArrayRecordDataSource(hash_of_paths={digest.hexdigest()})"


def _restore(kind: type[ArrayRecordDataSource], parts: list[tuple[str, int, int]], attributes: dict[str, Any] | None) -> ArrayRecordDataSource:
    source: ArrayRecordDataSource = _core.RecordFiles.__new__(kind, [(path, (start, end)) for path, start, end in parts])
    if attributes:
        source.__dict__.update(attributes)
    return source


__all__ = ["ArrayRecordDataSource", "FileInstruction", "SupportsIndex"]
