"""Grain's shuffle, bit for bit, on arrays of positions: well under a microsecond each in blocks of a thousand.

Grain permutes `0..=max_index` with 4 rounds of the SIMON block cipher, the same as `loader/src/grain_shuffle.rs`, which names the sources
and the few lengths for which the order is not quite a permutation.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy
import numpy.typing

from prep.errors import InvalidError

Array = numpy.typing.NDArray[numpy.int64]
_Words = numpy.typing.NDArray[numpy.uint32]
_ROUNDS = 4
# Up to here, half of the smallest block, an epoch's order is kept as a table.
_LONGEST_TABLE = 1 << 15


def shuffled(positions: Array, length: int, seed: int) -> Array:
    """The record at each position of the endless shuffled stream of `length` records; epoch `e` has seed `(seed + e) mod 2^32`."""
    if length <= 0:
        raise InvalidError("a shard has no records to shuffle; use fewer shards")
    if length > 1 << 32:
        raise InvalidError(f"{length} records are too many to shuffle in Grain's order, which ends at 2^32")
    if length == 1:
        return numpy.zeros_like(positions)
    epochs, within = numpy.divmod(positions, length)
    values = numpy.empty_like(positions)
    for epoch in numpy.unique(epochs).tolist():
        at = epochs == epoch
        values[at] = _permuted(within[at], length, (seed + epoch) % 2**32)
    return values


def _permuted(indices: Array, length: int, seed: int) -> Array:
    if length <= _LONGEST_TABLE:
        return _table(length, seed)[indices].astype(numpy.int64)
    half = _half_block_bits(length - 1)
    keys = _round_keys(seed, half)
    values = _encrypted(indices.astype(numpy.uint32), half, keys)
    # Cycle walking: what falls outside is permuted again until it is inside; at most 3 of 4 do.
    while len(outside := numpy.nonzero(values >= length)[0]):
        values[outside] = _encrypted(values[outside], half, keys)
    return values.astype(numpy.int64)


@functools.lru_cache(maxsize=32)
def _table(length: int, seed: int) -> _Words:
    """The permutation of a whole epoch that is much shorter than the block, where each walk would be long.

    All walks are walked together, in steps that double: some 2 ms.
    """
    half = _half_block_bits(length - 1)
    after = _encrypted(numpy.arange(1 << 2 * half, dtype=numpy.uint32), half, _round_keys(seed, half))
    found = after[:length]
    while len(outside := numpy.nonzero(found >= length)[0]):
        found[outside] = after[found[outside]]
        after = numpy.where(after >= length, after[after], after)
    return found


def _half_block_bits(max_index: int) -> int:
    bits = (max_index - 1).bit_length()
    return max(bits + bits % 2, 16) // 2


def _encrypted(values: _Words, bits: int, keys: Sequence[int]) -> _Words:
    mask = numpy.uint32((1 << bits) - 1)

    def rotated(words: _Words, by: int) -> _Words:
        return ((words << numpy.uint32(by)) | (words >> numpy.uint32(bits - by))) & mask

    def mixed(words: _Words) -> _Words:
        return (rotated(words, 1) & rotated(words, 8)) ^ rotated(words, 2)

    left, right = values >> numpy.uint32(bits), values & mask
    for at in range(0, _ROUNDS, 2):
        left = left ^ mixed(right) ^ numpy.uint32(keys[at])
        right = right ^ mixed(left) ^ numpy.uint32(keys[at + 1])
    return (left << numpy.uint32(bits)) | right


def _round_keys(seed: int, bits_of_key: int) -> list[int]:
    """What C++'s `std::seed_seq{seed}` generates, cut to the size of a key."""
    count = _ROUNDS
    words = [0x8B8B8B8B] * count
    spread = (count - 1) // 2
    near = (count - spread) // 2
    far = near + spread
    bits = 0xFFFFFFFF
    for step in range(2 * count):
        at, to, beyond = step % count, (step + near) % count, (step + far) % count
        before = words[(step - 1) % count]
        if step < count:
            mixed = words[at] ^ words[to] ^ before
            first = 1664525 * (mixed ^ mixed >> 27) & bits
            second = first + (1 if step == 0 else at + seed if step == 1 else at) & bits
            words[to] = words[to] + first & bits
            words[beyond] = words[beyond] + second & bits
        else:
            mixed = words[at] + words[to] + before & bits
            first = 1566083941 * (mixed ^ mixed >> 27) & bits
            second = first - at & bits
            words[to] ^= first
            words[beyond] ^= second
        words[at] = second
    return [word & (1 << bits_of_key) - 1 for word in words]
