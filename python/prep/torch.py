"""Batches as tensors of PyTorch, shared out among ranks and worker processes, with a state that `StatefulDataLoader` saves.

```python
import prep.torch

loader = prep.torch.loader("cifar10", columns=["image", "label"], batch_size=256, seed=42, num_epochs=1, drop_remainder=True)
for epoch in range(10):
    loader.dataset.set_epoch(epoch)
    for batch in loader:
        batch["image"]  # uint8[256, 32, 32, 3]: the loader's own memory, no copy
torch.save(loader.state_dict(), "stream.pt")  # at any step
```

Threads of Rust read, decode and batch, so `num_workers=0` is the quickest: no tensor travels between processes. Worker processes are for
transforms in Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, SupportsIndex

import numpy
import torch  # type: ignore[import-not-found, unused-ignore]
import torch.distributed  # type: ignore[import-not-found, unused-ignore]
import torch.utils.data  # type: ignore[import-not-found, unused-ignore]

from prep import _api, _states
from prep.errors import InvalidError

__all__ = ["Dataset", "IterableDataset", "Stream", "loader", "to_tensors"]


def to_tensors(batch: Any) -> Any:
    """The same tree with tensors that share the arrays' memory.

    Byte strings and text become lists, ragged features lists of tensors. Masked arrays stay NumPy's, which PyTorch has nothing like; so
    do numbers and strings of Python. An array that is read-only is copied.

    >>> to_tensors({"label": numpy.arange(3), "name": numpy.array([b"a", b"b", b"c"], object)})
    {'label': tensor([0, 1, 2]), 'name': [b'a', b'b', b'c']}
    """
    if isinstance(batch, dict):
        return {name: to_tensors(value) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        values = [to_tensors(value) for value in batch]
        return type(batch)(*values) if hasattr(batch, "_fields") else type(batch)(values)
    if isinstance(batch, numpy.ma.MaskedArray) or not isinstance(batch, (numpy.ndarray, numpy.generic)):
        return batch
    array = numpy.asarray(batch)
    if array.dtype.kind in "OSU":
        return array.tolist()
    if not array.flags.writeable:
        array = array.copy()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(numpy.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class IterableDataset(torch.utils.data.IterableDataset[Any]):  # type: ignore[misc, unused-ignore]
    """Batches of a dataset of the catalog, or of any iterator of ours, as tensors; for a `DataLoader` with `batch_size=None`, or alone.

    Each worker process of each rank reads a share of its own. `iter` gives a `Stream`, which has the state.

    >>> dataset = IterableDataset("cifar10", split="test", batch_size=16, num_epochs=1, columns=["label"])
    >>> [tuple(batch["label"].shape) for batch in dataset]
    [(16,), (16,), (16,), (12,)]

    Args:
        source: Name of a dataset, with the options of `prep.load`; or a function of `shard_index` and `shard_count` that opens a stream
            with a state: a `prep.Loader`, an iterator of `prep.grain` or of a pipeline. It has to pickle where workers are spawned.
        rank: Of this process. Default: that of `torch.distributed`, where it is initialised, else 0.
        world_size: Number of ranks. Default: likewise, else 1.
        options: Of `prep.load`, with a name only. `batch_size` is of one worker of one rank. All take equal steps, so that the last batch of
            an epoch may have no row for some: `drop_remainder=True` leaves it out. `num_epochs` is of one iteration: with 1, the loop over the
            dataset is one epoch, and `set_epoch` says which.
    """

    def __init__(
        self,
        source: str | Callable[[int, int], Iterable[Any]],
        *,
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if (rank is None) != (world_size is None):
            raise InvalidError("`rank` and `world_size` go together")
        if rank is not None and world_size is not None and not 0 <= rank < world_size:
            raise InvalidError(f"`rank` is {rank}, wanted 0 to {world_size - 1} with {world_size} ranks")
        if not isinstance(source, str) and options:
            raise InvalidError(f"options go with a name, not with a function: {', '.join(options)}")
        for name in ("shard_index", "shard_count", "state"):
            if name in options:
                raise InvalidError(f"`{name}` comes from rank, workers and `load_state_dict`; pass `rank` and `world_size` to say it yourself")
        self._source = source
        self._options = options
        self._ranks = None if rank is None else (rank, world_size)
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch the next iteration begins with, from 0: each has an order of its own. Before workers start, as for torch's samplers."""
        if not isinstance(self._source, str):
            raise InvalidError("the stream of a function has its own epochs")
        if epoch < 0:
            raise InvalidError(f"`epoch` is {epoch}, wanted at least 0")
        self._epoch = epoch

    def _share(self) -> tuple[int, int]:
        """Of this worker of this rank. A rank's workers are neighbours: together they read what the rank would alone, in batches as large in sum."""
        rank, world_size = self._found_ranks()
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return rank, world_size
        return rank * worker.num_workers + worker.id, world_size * worker.num_workers

    def _found_ranks(self) -> tuple[int, int]:
        if self._ranks is not None:
            return self._ranks  # type: ignore[return-value, unused-ignore]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is spawned knows nothing of the group of its parent.
        return {**self.__dict__, "_ranks": self._found_ranks()}

    def __iter__(self) -> Stream:
        return Stream(self, self._share(), self._epoch)

    def _opened(self, share: tuple[int, int], epoch: int) -> Any:
        if not isinstance(self._source, str):
            return iter(self._source(*share))
        options = dict(self._options)
        index, count = share
        epochs = options.pop("num_epochs", None)
        stream = _api.load(self._source, **options, num_epochs=None if epochs is None else epoch + epochs, shard_index=index, shard_count=count)
        if epoch:
            state = stream.state()
            stream.restore({**state, "sample_position": epoch * state["records"]})
        return stream


class Stream(Iterator[Any]):
    """One iteration over an `IterableDataset`: batches of tensors, and where it stands."""

    def __init__(self, dataset: IterableDataset, share: tuple[int, int], epoch: int) -> None:
        self._dataset = dataset
        self._share = share
        self._epoch = epoch
        self._batches = dataset._opened(share, epoch)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        return to_tensors(next(self._batches))

    def state_dict(self) -> dict[str, Any]:
        """After the last batch that was given: plain values, under 1 KB."""
        return {"epoch": self._epoch, "share": list(self._share), "stream": _states.to_json(_states.state_of(self._batches))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state, with the same number of ranks and workers.

        Raises:
            StateError: The state is of another dataset, split, seed or order.
            InvalidError: It is of another share.
        """
        if tuple(state_dict["share"]) != self._share:
            theirs, ours = state_dict["share"], self._share
            raise InvalidError(
                f"the state is that of share {theirs[0]} of {theirs[1]}, this is {ours[0]} of {ours[1]}: take the same ranks and workers; or "
                "the state of a `prep.Loader` itself, which fits any number"
            )
        if state_dict["epoch"] != self._epoch:
            self._epoch = state_dict["epoch"]
            self.close()
            self._batches = self._dataset._opened(self._share, self._epoch)
        _states.restore_json(self._batches, state_dict["stream"], "load_state_dict")

    def close(self) -> None:
        """Ends the threads or processes of the stream."""
        if callable(close := getattr(self._batches, "close", None)):
            close()


def loader(
    source: str | Callable[[int, int], Iterable[Any]],
    *,
    num_workers: int = 0,
    pin_memory: bool = False,
    prefetch_factor: int | None = None,
    persistent_workers: bool = False,
    multiprocessing_context: Any = None,
    snapshot_every_n_steps: int = 1,
    rank: int | None = None,
    world_size: int | None = None,
    **options: Any,
) -> Any:
    """A `torchdata.stateful_dataloader.StatefulDataLoader` over an `IterableDataset`, whose batches it gives as they are.

    Args:
        source, rank, world_size, options: See `IterableDataset`.
        num_workers: Processes that read. 0 is the quickest: see above.
        pin_memory: Whether batches are copied to pinned memory, by a thread of the loader, so that copies to an accelerator overlap with its work.
        prefetch_factor, persistent_workers, multiprocessing_context, snapshot_every_n_steps: As PyTorch and torchdata have them.
    """
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-not-found, import-untyped, unused-ignore]

    return StatefulDataLoader(
        IterableDataset(source, rank=rank, world_size=world_size, **options),
        batch_size=None,
        num_workers=num_workers,
        pin_memory=pin_memory,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
        multiprocessing_context=multiprocessing_context,
        snapshot_every_n_steps=snapshot_every_n_steps,
    )


class Dataset(torch.utils.data.Dataset[Any]):  # type: ignore[misc, unused-ignore]
    """Random access to examples as dicts of tensors, for a `DataLoader` with samplers of PyTorch. A batch is one call.

    >>> dataset = Dataset("cifar10", split="test", columns=["image", "label"])
    >>> batch = next(iter(torch.utils.data.DataLoader(dataset, batch_size=4)))
    >>> len(dataset), tuple(batch["image"].shape)
    (60, (4, 32, 32, 3))

    Args:
        name: `name`, `name/config`, `name:version`, `name@tag`.
        split: As TFDS reads it.
        columns: Features to give, of those at the top. Default: all.
        catalog: Folder or URL; default `$PREP_CATALOG`, else a folder under `$PREP_HOME`.
    """

    def __init__(
        self,
        name: str,
        *,
        split: str = "train",
        columns: Sequence[str] | None = None,
        catalog: str | os.PathLike[str] | None = None,
    ) -> None:
        self._dataset = _api.open(name, split=split, catalog=catalog)
        known = self._dataset.element_spec
        for column in columns or ():
            if column not in known:
                raise InvalidError(f"no feature `{column}` in {self._dataset.name}, which has {', '.join(known)}")
        self._columns = columns

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        return self._tensors(self._dataset[index])

    def __getitems__(self, indices: Iterable[SupportsIndex]) -> list[dict[str, Any]]:
        return [self._tensors(element) for element in self._dataset.elements(indices)]

    def _tensors(self, element: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = to_tensors({name: element[name] for name in self._columns or element})
        return found
