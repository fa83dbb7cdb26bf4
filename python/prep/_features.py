"""How callers say what features are, in the words of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prep._spec import ArraySpec
from prep.errors import InvalidError


def declared(features: Mapping[str, Any] | None) -> Any:
    """`features` as JSON has it: recipes' words, with Python's and NumPy's types, tuples and `ArraySpec` in them.

    >>> declared({"id": int, "name": str, "image": ArraySpec((None, 3), "uint8"), "box": {"kind": "tensor", "shape": (4,), "dtype": "float32"}})
    {'id': 'int64', 'name': 'text', 'image': {'kind': 'tensor', 'shape': [None, 3], 'dtype': 'uint8'}, 'box': {'kind': 'tensor', 'shape': [4], 'dtype': 'float32'}}
    """
    return None if features is None else _plain(features, "features")


def _plain(value: Any, path: str) -> Any:
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, ArraySpec):
        kind = {"kind": "tensor", "shape": [*value.shape]} if value.shape else {"kind": "scalar"}
        return {**kind, "dtype": _dtype(value.dtype, path)}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner, f"{path}.{name}") for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, path) for inner in value]
    if value is str:
        return "text"
    if hasattr(value, "__index__") and not isinstance(value, type):
        return int(value)
    return _dtype(value, path)


def _dtype(value: Any, path: str) -> str:
    import numpy

    try:
        return str(numpy.dtype(value).name)
    except TypeError:
        raise InvalidError(f"`{path}`: wanted what the feature is, as in `'int64'` or `{{'kind': 'text'}}`, found {value!r}") from None
