"""How a typed program uses the package: checked by `mypy --strict`, run by `test_usage.py`."""

import pathlib

import prep


def records(path: pathlib.Path) -> tuple[int, bytes, list[bytes]]:
    with prep.ArrayRecordDataSource([path]) as source:
        return len(source), source[0], source.__getitems__([2, 1])
