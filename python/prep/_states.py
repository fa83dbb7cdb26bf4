"""The state of any iterator of ours, or of Grain: `state()` and `restore()`, or `get_state()` and `set_state()`; a dict, or JSON as text or bytes."""

from __future__ import annotations

import json
from typing import Any

from prep.errors import InvalidError, StateError

_PAIRS = (("state", "restore"), ("get_state", "set_state"))


def _pair(iterator: Any) -> tuple[Any, Any] | None:
    for getter, setter in _PAIRS:
        if callable(getattr(iterator, getter, None)) and callable(getattr(iterator, setter, None)):
            return getattr(iterator, getter), getattr(iterator, setter)
    return None


def has_state(iterator: Any) -> bool:
    """Whether it says where it stands."""
    return _pair(iterator) is not None


def _methods(iterator: Any) -> tuple[Any, Any]:
    found = _pair(iterator)
    if found is None:
        raise InvalidError(f"a {type(iterator).__name__} has no state: wanted `state()` and `restore()`, or `get_state()` and `set_state()`")
    return found


def state_of(iterator: Any) -> Any:
    """Where it stands, as it says it."""
    return _methods(iterator)[0]()


def restore(iterator: Any, state: Any) -> None:
    """Goes on from what `state_of` gave."""
    _methods(iterator)[1](state)


def to_json(state: Any) -> str:
    """A state as text; of Grain's states, that which Grain writes itself."""
    if isinstance(state, bytes):
        return state.decode()
    return state if isinstance(state, str) else json.dumps(state, indent=4)


def restore_json(iterator: Any, text: str, where: object) -> None:
    """Goes on from what `to_json` gave; `where` it was kept is for errors."""
    try:
        state = json.loads(text)
    except ValueError as error:
        raise StateError(f"{where}: the state is not JSON: {error}") from error
    # What an iterator takes is what it gives.
    kind = type(state_of(iterator))
    restore(iterator, text.encode() if kind is bytes else text if kind is str else state)
