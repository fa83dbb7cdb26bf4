"""How far a job is."""

from __future__ import annotations

from collections.abc import Callable
from typing import List, NamedTuple, TypeAlias


class Stage(NamedTuple):
    """How far one stage of a job is."""

    name: str
    """What it does: `fetch cifar-10-binary.tar.gz`."""
    unit: str
    """What is counted: `bytes`, `examples`, `records` or `files`."""
    done: int
    total: int | None
    """`None` where it is not known yet."""
    finished: bool


Progress: TypeAlias = Callable[[List[Stage]], object]
# As it comes from Rust.
Rows: TypeAlias = List[tuple[str, str, int, int | None, bool]]


def staged(progress: Progress | None) -> Callable[[Rows], object] | None:
    """What Rust calls, for what the caller gave."""
    return None if progress is None else lambda stages: progress([Stage(*stage) for stage in stages])
