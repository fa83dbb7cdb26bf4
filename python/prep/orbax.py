"""Where an iterator stands, saved by Orbax beside the model: one small JSON file a process.

```python
import orbax.checkpoint as ocp
import prep.orbax

manager = ocp.CheckpointManager(folder)
manager.save(step, args=ocp.args.Composite(model=ocp.args.StandardSave(params), data=prep.orbax.SaveArgs(iterator)))
restored = manager.restore(step, args=ocp.args.Composite(model=ocp.args.StandardRestore(params), data=prep.orbax.RestoreArgs(iterator)))
```

`iterator` is what `prep.load` gives, an iterator of `prep.grain` or of a pipeline, or one of `prep.jax.prefetch_to_device` over those. Restoring
moves it to where the saved one stood, and refuses the state of another dataset, split, seed or order.

The files are those of Grain's own handler, `process_0-of-2.json`: a checkpoint of a Grain `DataLoader` goes on under `prep.grain`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable
from typing import Any

import orbax.checkpoint as ocp  # type: ignore[import-untyped, import-not-found, unused-ignore]

from prep import _states
from prep.errors import NotFoundError, StateError

__all__ = ["Checkpointable", "CheckpointHandler", "RestoreArgs", "SaveArgs"]


def _file_name() -> str:
    import jax

    return f"process_{jax.process_index()}-of-{jax.process_count()}.json"


def _restore(directory: Any, iterator: Any) -> None:
    """From this process' file; where other processes saved, from theirs, if all say the same: a position in the stream of all of them."""
    mine = _file_name()
    saved = {path.name: path for path in directory.iterdir()} if directory.exists() else {}
    if mine not in saved:
        found = {name: re.fullmatch(r"process_\d+-of-(\d+)\.json", name) for name in saved}
        counts = {int(match[1]) for match in found.values() if match}
        if not counts:
            raise NotFoundError(f"{directory} holds no state of an iterator, wanted `{mine}`")
        if len(counts) > 1:
            raise StateError(f"{directory} holds states of {sorted(counts)} processes, none of them `{mine}`")
        (count,) = counts
        missing = [name for name in (f"process_{index}-of-{count}.json" for index in range(count)) if name not in saved]
        if missing:
            raise StateError(f"{directory} was saved by {count} processes, and `{missing[0]}` is missing")
        texts = [saved[f"process_{index}-of-{count}.json"].read_text() for index in range(count)]
        if len(set(texts)) > 1 and getattr(iterator, "takes_states_of_all_hosts", False):
            _states.restore(iterator, texts)
        elif len(set(texts)) > 1:
            raise StateError(
                f"{directory} was saved by {count} processes whose states differ, so it goes on with as many only; here `{mine}` is wanted. "
                "Save at the same step in all processes, from `prep.load` or a pipeline, whose states are those of the stream of all hosts"
            )
        else:
            _states.restore_json(iterator, texts[0], directory)
    else:
        _states.restore_json(iterator, saved[mine].read_text(), saved[mine])
    if callable(start := getattr(iterator, "start_prefetch", None)):
        start()


class CheckpointHandler(ocp.CheckpointHandler):  # type: ignore[misc, unused-ignore]
    """Saves and restores iterators; for `Checkpointer` and `CheckpointManager`, through `SaveArgs` and `RestoreArgs`."""

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        """Writes where the iterator stands, at the time of the call."""
        iterator = args.item if item is None else item
        (directory / _file_name()).write_text(_states.to_json(_states.state_of(iterator)))

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """Moves the iterator to where the saved one stood, and returns it.

        Raises:
            NotFoundError: Nothing was saved there.
            StateError: The state is of another stream, or was saved by another number of processes whose states differ.
        """
        iterator = args.item if item is None else item
        _restore(directory, iterator)
        return iterator


@ocp.args.register_with_handler(CheckpointHandler, for_save=True)  # type: ignore[untyped-decorator, unused-ignore]
@dataclasses.dataclass
class SaveArgs(ocp.args.CheckpointArgs):  # type: ignore[misc, unused-ignore]
    """The iterator to save."""

    item: Any


@ocp.args.register_with_handler(CheckpointHandler, for_restore=True)  # type: ignore[untyped-decorator, unused-ignore]
@dataclasses.dataclass
class RestoreArgs(ocp.args.CheckpointArgs):  # type: ignore[misc, unused-ignore]
    """The iterator to move to where the saved one stood."""

    item: Any


class Checkpointable:
    """An iterator for Orbax's newer interface: `ocp.save_checkpointables(path, {"data": Checkpointable(iterator)})`."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    async def save(self, directory: Any) -> Awaitable[None]:
        """Notes where the iterator stands; what it gives writes that."""
        text = _states.to_json(_states.state_of(self.iterator))

        async def write() -> None:
            place = await directory.await_creation()
            (place / _file_name()).write_text(text)

        return write()

    async def load(self, directory: Any) -> Awaitable[None]:
        """Gives what moves the iterator to where the saved one stood."""

        async def read() -> None:
            _restore(directory, self.iterator)

        return read()
