"""Which share of the stream one process reads."""

from __future__ import annotations

import dataclasses

from prep.errors import InvalidError

__all__ = ["NoSharding", "ShardByJaxProcess", "ShardOptions"]


@dataclasses.dataclass(frozen=True)
class ShardOptions:
    """Share `shard_index` of `shard_count`, each a run of consecutive records of the source.

    With `drop_remainder` all shares are equally long and the last few records are in none; otherwise the first shares have one more.

    >>> ShardOptions(shard_index=1, shard_count=4)
    ShardOptions(shard_index=1, shard_count=4, drop_remainder=False)
    """

    shard_index: int
    shard_count: int
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        if self.shard_count <= 0:
            raise InvalidError(f"`shard_count` is {self.shard_count}, wanted at least 1")
        if not 0 <= self.shard_index < self.shard_count:
            raise InvalidError(f"`shard_index` is {self.shard_index}, wanted 0 to {self.shard_count - 1} with {self.shard_count} shards")


class NoSharding(ShardOptions):
    """All records."""

    def __init__(self) -> None:
        super().__init__(shard_index=0, shard_count=1, drop_remainder=False)


class ShardByJaxProcess(ShardOptions):
    """The share of this process among those of `jax.distributed`; all records where JAX is not installed."""

    def __init__(self, drop_remainder: bool = False) -> None:
        index, count = 0, 1
        try:
            import jax
        except ImportError:
            pass
        else:
            index, count = jax.process_index(), jax.process_count()
        super().__init__(shard_index=index, shard_count=count, drop_remainder=drop_remainder)


def span(num_records: int, options: ShardOptions) -> tuple[int, int]:
    """First record of a share, and the one after its last."""
    each, rest = divmod(num_records, options.shard_count)
    before = 0 if options.drop_remainder else min(options.shard_index, rest)
    one_more = not options.drop_remainder and options.shard_index < rest
    start = each * options.shard_index + before
    return start, start + each + one_more
