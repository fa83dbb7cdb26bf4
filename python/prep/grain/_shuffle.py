"""Grain's shuffle, bit for bit, on arrays of positions: about 30 ns each in blocks of a thousand.

Grain permutes `0..=max_index` with 4 rounds of the SIMON block cipher, the same as `loader/src/grain_shuffle.rs`, which names the sources
and the few lengths for which the order is not quite a permutation.
"""

from __future__ import annotations

import functools

import numpy
import numpy.typing

from prep.errors import InvalidError

Array = numpy.typing.NDArray[numpy.int64]
_Words = numpy.typing.NDArray[numpy.uint32]
_ROUNDS = 4


def shuffled(positions: Array, length: int, seed: int) -> Array:
    """The record at each position of the endless shuffled stream of `length` records; epoch `e` has seed `(seed + e) mod 2^32`."""
    if length <= 0:
        raise InvalidError("a shard has no records to shuffle; use fewer shards")
    if length > 1 << 32:
        raise InvalidError(f"{length} records are too many to shuffle in Grain's order, which ends at 2^32")
    if length == 1:
        return numpy.zeros_like(positions)
    epochs, within = numpy.divmod(positions, length)
    first = int(epochs.min()) if len(epochs) else 0
    last = int(epochs.max()) if len(epochs) else 0
    if last - first <= len(epochs):
        present = range(first, last + 1)
        which = epochs - first
    else:
        unique, which = numpy.unique(epochs, return_inverse=True)
        present = unique.tolist()
    half = _half_block_bits(length - 1)
    mask = (1 << half) - 1
    table = numpy.array([_round_keys((seed + epoch) % 2**32) for epoch in present], numpy.uint32) & numpy.uint32(mask)
    keys = table[0][:, None] if len(table) == 1 else table.T[:, which]
    values = _encrypt(within.astype(numpy.uint32), half, keys)
    # Cycle walking: what falls outside is permuted again until it is inside.
    while len(outside := numpy.nonzero(values >= length)[0]):
        values[outside] = _encrypt(values[outside], half, keys if keys.shape[1] == 1 else keys[:, outside])
    return values.astype(numpy.int64)


def _half_block_bits(max_index: int) -> int:
    bits = (max_index - 1).bit_length()
    return max(bits + bits % 2, 16) // 2


def _encrypt(values: _Words, bits: int, keys: _Words) -> _Words:
    mask = numpy.uint32((1 << bits) - 1)

    def rotated(words: _Words, by: int) -> _Words:
        return ((words << numpy.uint32(by)) | (words >> numpy.uint32(bits - by))) & mask

    def round_function(words: _Words) -> _Words:
        return (rotated(words, 1) & rotated(words, 8)) ^ rotated(words, 2)

    left, right = values >> numpy.uint32(bits), values & mask
    for at in range(0, _ROUNDS, 2):
        left = left ^ round_function(right) ^ keys[at]
        right = right ^ round_function(left) ^ keys[at + 1]
    return (left << numpy.uint32(bits)) | right


@functools.lru_cache(maxsize=4096)
def _round_keys(seed: int) -> tuple[int, ...]:
    """What C++'s `std::seed_seq{seed}` generates, of 32 bits each."""
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
    return tuple(words)
