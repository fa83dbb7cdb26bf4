"""The generators of random transforms, at a fraction of what `numpy.random.Philox(key=...)` costs, which asks the system for entropy."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.random.bit_generator import ISpawnableSeedSequence


class _Key(ISpawnableSeedSequence):  # type: ignore[misc, unused-ignore]
    """Seeds a Philox with a key and nothing else."""

    __slots__ = ("key",)

    def __init__(self, key: int) -> None:
        self.key = key

    def generate_state(self, n_words: int, dtype: Any = numpy.uint32) -> Any:
        bits = 8 * numpy.dtype(dtype).itemsize
        return numpy.array([self.key >> bits * word & (1 << bits) - 1 for word in range(n_words)], dtype)

    def spawn(self, n_children: int) -> Any:
        return numpy.random.SeedSequence(self.key).spawn(n_children)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Key, (self.key,)


def philox(key: int) -> numpy.random.Generator:
    """A generator in the state of `numpy.random.Generator(numpy.random.Philox(key=key))`."""
    if not 0 <= key < 1 << 128:
        # NumPy's own error.
        return numpy.random.Generator(numpy.random.Philox(key=key))
    seed: Any = _Key(key)
    return numpy.random.Generator(numpy.random.Philox(seed))
