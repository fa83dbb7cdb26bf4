"""What goes wrong, as exceptions: `PrepError` at the root, one subclass for each thing a caller would catch.

Each subclass is also one of Python's own kinds, so that code which knows nothing of this package catches it too:

>>> issubclass(NotFoundError, KeyError) and issubclass(DamagedError, ValueError)
True
"""

__all__ = [
    "BuildError",
    "ClosedError",
    "ConflictError",
    "DamagedError",
    "InternalError",
    "InvalidError",
    "NotFoundError",
    "OutOfRangeError",
    "PrepError",
    "StateError",
    "StorageError",
    "UnsupportedError",
    "WorkerError",
]


class PrepError(Exception):
    """Any failure of this package. `str(error)` says what happened, where, and what to do."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class NotFoundError(PrepError, KeyError, FileNotFoundError):
    """A dataset, version, tag, split or file that is not there."""


class InvalidError(PrepError, ValueError):
    """An argument that cannot be right: a split that does not parse, a batch of no rows, shard 8 of 8."""


class DamagedError(PrepError, ValueError):
    """A file that is damaged or cut: names the file, the record and the offset."""


class UnsupportedError(PrepError, NotImplementedError):
    """Bytes or a request that may be right, but that this version cannot handle."""


class StorageError(PrepError, OSError):
    """The operating system or a store refused."""


class OutOfRangeError(PrepError, IndexError, ValueError):
    """An index outside of the dataset. (A `ValueError` too, as in `array_record`.)"""


class StateError(PrepError, ValueError):
    """A saved state that belongs to another dataset, split, seed or order: both sides are named."""


class ConflictError(PrepError, RuntimeError):
    """Something different is in its place already, or somebody else was faster."""


class BuildError(PrepError, RuntimeError):
    """A build that failed. What it finished is kept: the same call goes on from there."""


class ClosedError(PrepError, ValueError):
    """A loader or data source that was closed before."""


class InternalError(PrepError, RuntimeError):
    """A bug of this package: please report it with this message and what you called."""


class WorkerError(PrepError, RuntimeError):
    """A worker process that was killed, or whose exception does not pickle."""
