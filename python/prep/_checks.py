"""Checks of arguments."""

from __future__ import annotations

import operator
from typing import Any

from prep.errors import InvalidError


def whole(value: Any, name: str) -> int:
    """A whole number from 0 on, of any type that is one."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` is {value!r}, wanted a whole number") from None
    if number < 0:
        raise InvalidError(f"`{name}` is {number}, wanted at least 0")
    return number
