"""What elements and batches look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, NamedTuple

if TYPE_CHECKING:
    import numpy


class ArraySpec(NamedTuple):
    """Shape and dtype of an array, known before any data are read. `None` in the shape is a size that varies.

    >>> import numpy
    >>> ArraySpec((256, 32, 32, 3), numpy.dtype("uint8")).shape
    (256, 32, 32, 3)
    """

    shape: tuple[int | None, ...]
    dtype: numpy.dtype


# A dict of arrays; byte strings and text are object arrays of `bytes`, features whose shape varies are lists of arrays, sequences in
# sequences lists of lists of them. Nested features are dicts again. An optional feature is a masked array, or has `None` in its list.
Batch = Dict[str, Any]
# A dict of arrays, NumPy scalars and `bytes`, of lists and dicts of them; `None` for an optional feature that is missing.
Element = Dict[str, Any]
