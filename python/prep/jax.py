"""Batches on the devices of JAX: ahead of need, sharded over a mesh, of one shape, and with the state of what was handed out.

```python
import jax, prep, prep.jax

mesh = jax.make_mesh((jax.device_count(),), ("data",))
sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
loader = prep.load("cifar10", columns=["image", "label"], batch_size=64, drop_remainder=True, **prep.jax.process_shard(sharding))
for batch in prep.jax.prefetch_to_device(loader, sharding=sharding):
    params = train_step(params, batch)  # `batch["image"]`: one global array of 64 rows from each process
```

JAX is imported when something here is used, not before.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypedDict

import numpy

from prep import _states
from prep.errors import ClosedError, InvalidError

if TYPE_CHECKING:
    from types import TracebackType

    import jax

__all__ = ["DeviceIterator", "ProcessShard", "make_global_batch", "prefetch_to_device", "process_shard"]


class ProcessShard(TypedDict):
    """Which share, of how many."""

    shard_index: int
    shard_count: int


def process_shard(sharding: jax.sharding.Sharding | None = None) -> ProcessShard:
    """The share of the stream that this process reads, as arguments of `prep.load`, `MapDataset.shard` and `prep.grain.ShardOptions`.

    >>> process_shard()
    {'shard_index': 0, 'shard_count': 1}

    Args:
        sharding: How batches lie on the devices. Processes whose devices hold the same rows, as under model parallelism, have the same share.
            Without it each process has its own.

    Raises:
        InvalidError: Processes whose rows are neither the same nor apart, or not equally many.
    """
    import jax

    if sharding is None:
        return {"shard_index": jax.process_index(), "shard_count": jax.process_count()}
    rows: dict[int, set[tuple[int, int]]] = {}
    # As many rows as devices: then no slice is empty. A rank for each dimension that the sharding may name.
    count = len(sharding.device_set)
    shape = (count,) * max(1, len(getattr(sharding, "spec", ())))
    device: Any
    for device, index in sharding.devices_indices_map(shape).items():
        start, stop, _ = (index or (slice(None),))[0].indices(count)
        rows.setdefault(device.process_index, set()).add((start, stop))
    shares = sorted({tuple(sorted(spans)) for spans in rows.values()})
    held = [row for spans in shares for start, stop in spans for row in range(start, stop)]
    sizes = {sum(stop - start for start, stop in spans) for spans in shares}
    if sorted(held) != list(range(count)) or len(sizes) > 1:
        raise InvalidError(f"{sharding} gives processes rows of a batch that are neither the same nor apart: {shares} of {count}")
    mine = rows.get(jax.process_index())
    if mine is None:
        raise InvalidError(f"{sharding} has no device of this process, {jax.process_index()} of {jax.process_count()}")
    return {"shard_index": shares.index(tuple(sorted(mine))), "shard_count": len(shares)}


def make_global_batch(batch: Any, sharding: jax.sharding.Sharding) -> Any:
    """One global array from the rows of each process, for each array of a batch: the process' rows become those of its devices.

    >>> import jax
    >>> mesh = jax.make_mesh((1,), ("data",))
    >>> sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    >>> make_global_batch({"label": numpy.zeros(8, numpy.int32)}, sharding)["label"].shape
    (8,)

    Raises:
        InvalidError: An array of the batch is none that a device holds, or its rows do not divide among the devices.
    """
    import jax

    globally: Any = jax.make_array_from_process_local_data
    paths, structure = jax.tree_util.tree_flatten_with_path(batch)
    arrays = []
    for path, leaf in paths:
        _check_leaf(path, leaf)
        try:
            arrays.append(globally(sharding, leaf))
        except ValueError as error:
            raise InvalidError(f"`{_name(path)}` of shape {numpy.shape(leaf)} does not fit {sharding}: {error}") from error
    return jax.tree_util.tree_unflatten(structure, arrays)


def prefetch_to_device(
    iterator: Iterable[Any],
    size: int = 2,
    sharding: jax.sharding.Sharding | None = None,
    *,
    check_shapes: bool = True,
) -> DeviceIterator:
    """Batches of `iterator` as arrays of JAX, `size` of them on the device or on their way at a time.

    JAX makes 64-bit numbers 32-bit ones, and cuts off what does not fit, unless the program sets `jax_enable_x64`.

    The state is that after the last batch handed out, whatever has been read ahead:

    >>> import prep
    >>> def batches(**options):
    ...     return prefetch_to_device(prep.load("cifar10", columns=["label"], batch_size=16, drop_remainder=True, **options))
    >>> stream = batches(seed=1)
    >>> first, state, second = next(stream), stream.state(), next(stream)
    >>> bool((next(batches(state=state))["label"] == second["label"]).all())
    True

    Args:
        iterator: Gives batches: trees of NumPy arrays and numbers. What `prep.load`, `prep.grain.DataLoader` and pipelines give.
        size: Batches; 1 means that none is ahead of the one asked for.
        sharding: How arrays lie on devices, of this and other processes: see `make_global_batch`. Default: JAX's default device.
        check_shapes: Whether a batch of another shape than the first is an error. Otherwise JAX compiles once for each shape.
    """
    return DeviceIterator(iterator, size, sharding, check_shapes)


class DeviceIterator(Iterator[Any]):
    """Made by `prefetch_to_device`: a context manager, with the state of the iterator it reads."""

    def __init__(self, iterator: Iterable[Any], size: int, sharding: jax.sharding.Sharding | None, check_shapes: bool) -> None:
        if size < 1:
            raise InvalidError(f"`size` is {size}, wanted at least 1")
        self._iterator = iter(iterator)
        self._size = size
        self._sharding = sharding
        self._check_shapes = check_shapes
        self._shapes: dict[str, tuple[tuple[int, ...], numpy.dtype[Any]]] | None = None
        self._ahead: collections.deque[tuple[Any, Any]] = collections.deque()
        # What came in place of a further batch: it is raised when those before it are gone.
        self._end: Exception | None = None
        self._closed = False
        self._has_state = _states.has_state(self._iterator)
        self._state = _states.state_of(self._iterator) if self._has_state else None

    def __iter__(self) -> DeviceIterator:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise ClosedError("the iterator is closed")
        while len(self._ahead) < self._size and self._end is None:
            try:
                batch = next(self._iterator)
                self._ahead.append((self._placed(batch), _states.state_of(self._iterator) if self._has_state else None))
            except Exception as error:
                self._end = error
        if not self._ahead:
            end, self._end = self._end, None
            assert end is not None
            raise end
        batch, self._state = self._ahead.popleft()
        return batch

    def _placed(self, batch: Any) -> Any:
        import jax

        if self._check_shapes:
            self._compare(batch)
        if self._sharding is not None:
            return make_global_batch(batch, self._sharding)
        paths, _ = jax.tree_util.tree_flatten_with_path(batch)
        for path, leaf in paths:
            _check_leaf(path, leaf)
        return jax.device_put(batch)

    def _compare(self, batch: Any) -> None:
        import jax

        leaves = jax.tree_util.tree_flatten_with_path(batch)[0]
        shapes = {_name(path): (numpy.shape(leaf), numpy.result_type(leaf)) for path, leaf in leaves if not _is_foreign(leaf)}
        if self._shapes is None:
            self._shapes = shapes
        if shapes == self._shapes:
            return
        for name in self._shapes.keys() | shapes.keys():
            before, found = self._shapes.get(name), shapes.get(name)
            if before != found:
                raise InvalidError(
                    f"`{name}` is {_described(found)} in a batch and was {_described(before)} in the first one, so JAX would compile anew: "
                    "pass `drop_remainder=True` to the loader, or `check_shapes=False` here"
                )

    @property
    def takes_states_of_all_hosts(self) -> bool:
        """Whether `restore` also takes a list: see `prep.DatasetIterator`."""
        return getattr(self._iterator, "takes_states_of_all_hosts", False)

    def state(self) -> Any:
        """Where the stream stands after the last batch that was handed out: what the iterator's own `state` or `get_state` gave then."""
        if not self._has_state:
            return _states.state_of(self._iterator)
        return self._state

    def restore(self, state: Any) -> None:
        """Goes on from a state; what was read ahead is dropped."""
        if self._closed:
            raise ClosedError("the iterator is closed")
        _states.restore(self._iterator, state)
        self._ahead.clear()
        self._end = None
        self._state = _states.state_of(self._iterator)

    def close(self) -> None:
        """Drops what was read ahead and closes the iterator, where it can be closed. The state can still be asked for."""
        self._closed = True
        self._ahead.clear()
        if callable(close := getattr(self._iterator, "close", None)):
            close()

    def __enter__(self) -> DeviceIterator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _name(path: Any) -> str:
    """Of a feature, as in `columns`: `a/b`."""
    return "/".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)


def _described(found: tuple[tuple[int, ...], numpy.dtype[Any]] | None) -> str:
    return "missing" if found is None else f"{found[1]}{list(found[0])}"


def _is_foreign(leaf: Any) -> bool:
    """Whether no device holds it."""
    return isinstance(leaf, (bytes, str, numpy.ma.MaskedArray)) or getattr(leaf, "dtype", None) in (object, numpy.str_, numpy.bytes_)


def _check_leaf(path: Any, leaf: Any) -> None:
    if not _is_foreign(leaf):
        return
    what = "a masked array" if isinstance(leaf, numpy.ma.MaskedArray) else "text or bytes"
    raise InvalidError(f"`{_name(path)}` is {what}, which no device holds: leave it out (`columns=`), or turn it into numbers first")
