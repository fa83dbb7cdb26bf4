"""`write` and `builder`: datasets whose examples come from Python code."""

from __future__ import annotations

import concurrent.futures
import functools
import glob
import hashlib
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, Union

from prep import _core
from prep._features import declared
from prep.errors import InvalidError, PrepError

Example: TypeAlias = Mapping[str, Any]
Examples: TypeAlias = Union[Iterable[Example], Callable[[], Iterable[Example]]]
PathLike: TypeAlias = Union[str, "os.PathLike[str]"]
# (name, path, the file of its examples) of a source.
_Task: TypeAlias = tuple[str, str, str]


def spec_of(name: str, **fields: Any) -> str:
    """What a dataset is, as `_core` takes it."""
    if not isinstance(name, str):
        raise TypeError(f"`name` is {name!r}, wanted a text")
    return json.dumps({"name": name, **{field: value for field, value in fields.items() if value is not None}})


def splits_of(examples: Examples | Mapping[str, Examples], split: str | None) -> dict[str, Examples]:
    """The examples of each split."""
    if not isinstance(examples, Mapping):
        return {split or "train": examples}
    if split is not None:
        raise InvalidError("`split` is for examples of one split, and a dict names its own")
    return {str(name): of_split for name, of_split in examples.items()}


def fill(writer: _core.ExampleWriter, examples: Examples) -> None:
    """Adds all examples. What their code raises says which example it was at."""
    count = 0
    iterator = iter(examples() if callable(examples) else examples)
    try:
        for example in iterator:
            writer.add(example)
            count += 1
    except PrepError:
        raise
    except Exception as error:
        error.add_note(f"at example {count} of {writer.name}")
        raise
    finally:
        # Whatever it holds open, it lets go of now.
        if inspect.isgenerator(iterator):
            iterator.close()
    writer.finish()


def _described(value: Any) -> Any:
    """What stands for a function, or a value that it has: the same in each process. Of objects that say nothing of themselves their class."""
    if isinstance(value, (bool, int, float, complex, str, bytes, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(_described, value)]
    if isinstance(value, Mapping):
        return ["dict", *((_described(key), _described(own)) for key, own in value.items())]
    if isinstance(value, (set, frozenset)):
        return ["set", *sorted(repr(_described(own)) for own in value)]
    if isinstance(value, functools.partial):
        return ["partial", _described(value.func), _described(value.args), _described(value.keywords)]
    if inspect.ismethod(value):
        return ["method", _described(value.__func__), _described(vars(value.__self__) if hasattr(value.__self__, "__dict__") else None)]
    if inspect.isfunction(value):
        code = value.__code__
        constants = [constant for constant in code.co_consts if not inspect.iscode(constant)]
        try:
            source = textwrap.dedent(inspect.getsource(value))
        except (OSError, TypeError):
            # Of an interactive session.
            source = code.co_code.hex()
        # Beside the source, as two functions may share a line.
        own = [source, list(code.co_names), _described(constants), _described(value.__defaults__), _described(value.__kwdefaults__)]
        inside = inspect.getclosurevars(value).nonlocals
        # A function that calls itself closes over itself.
        return ["function", *own, *(_described(cell) for cell in inside.values() if cell is not value and not isinstance(cell, Builder))]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    import numpy

    if isinstance(value, numpy.generic) or (isinstance(value, numpy.ndarray) and not value.dtype.hasobject):
        return [str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
    return f"{type(value).__module__}.{type(value).__qualname__}"


class Builder:
    """A dataset that code makes of sources: what `@prep.builder` makes of a function. `prep.build` builds it.

    Calling it calls the function.
    """

    def __init__(self, function: Callable[[str], Iterable[Example]], name: str, version: str, fields: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.name = name
        self.version = version
        self._function = function
        self._fields = fields

    def __call__(self, source: str) -> Iterable[Example]:
        return self._function(source)

    def __repr__(self) -> str:
        return f"<prep.Builder {self.name}:{self.version}>"

    def __reduce__(self) -> str | tuple[Any, ...]:
        # By name, as functions are: the name of the function means this.
        found: Any = sys.modules.get(self._function.__module__)
        for part in self._function.__qualname__.split("."):
            found = getattr(found, part, None)
        if found is self:
            return str(self._function.__qualname__)
        return Builder, (self._function, self.name, self.version, self._fields)

    def identity(self) -> str:
        """A hash of the function: its source, its defaults and what it closes over. What it calls is not in it: that is what the version is for."""
        return hashlib.sha256(repr(_described(self._function)).encode()).hexdigest()

    def spec(self, splits: Iterable[str]) -> str:
        """As `spec_of`."""
        return spec_of(self.name, version=self.version, splits=[*splits], **self._fields)


def builder(
    name: str,
    *,
    features: Mapping[str, Any] | None = None,
    version: str = "1.0.0",
    key: str | None = None,
    description: str = "",
    citation: str = "",
    licence: str | None = None,
    urls: Sequence[str] = (),
    supervised_keys: tuple[str, str] | None = None,
    options: str | None = None,
) -> Callable[[Callable[[str], Iterable[Example]]], Builder]:
    """Makes a builder of a function that yields the examples of a source.

    The function is called once for each source, with its path on this machine, in worker processes: see `prep.build`. It is a function of the
    source's bytes: which process runs it, and what ran before, is not to matter.

    >>> @builder("words", features={"word": "text", "length": "int64"})
    ... def words(source):
    ...     with open(source) as lines:
    ...         for line in lines:
    ...             yield {"word": line.strip(), "length": len(line.strip())}
    >>> words
    <prep.Builder words:1.0.0>

    Args:
        name: `name` or `name/config`.
        features: As `prep.write` takes them. Default: what all examples have in common.
        version: Of the dataset. To be raised when code changes that the function calls; a change of the function itself is noticed.
        key: As in `prep.write`. Default: the position among the examples of the split, source after source.
        description: What it is.
        citation: How to cite it.
        licence: Under which it may be used.
        urls: Home pages.
        supervised_keys: The features that are input and target.
        options: ArrayRecord options of the shards. Default: `group_size:1,zstd:3`.
    """
    fields = {
        "features": declared(features),
        "key": key,
        "description": description,
        "citation": citation,
        "licence": licence,
        "urls": listed(urls),
        "supervised_keys": supervised_keys,
        "options": options,
    }
    return lambda function: Builder(function, name, version, fields)


def listed(texts: Sequence[str]) -> list[str]:
    """Several texts, or one."""
    return [texts] if isinstance(texts, str) else [*texts]


def places_of(sources: Mapping[str, PathLike | Sequence[PathLike]]) -> list[tuple[int, str]]:
    """The sources of each split, by its index: paths, addresses, and what patterns stand for, in the order of the paths."""
    places = []
    for index, (split, given) in enumerate(sources.items()):
        for path in [given] if isinstance(given, (str, os.PathLike)) else given:
            place = os.fspath(path)
            if "://" in place or os.path.exists(place) or not glob.has_magic(place):
                places.append((index, place))
                continue
            found = sorted(glob.glob(place, recursive=True))
            if not found:
                raise InvalidError(f"split `{split}`: no file matches `{place}`")
            places += [(index, match) for match in found]
    return places


def _run(made: Builder, spec: str, task: _Task) -> None:
    name, path, output = task
    writer = _core.ExampleWriter(spec, name, path=output)
    try:
        fill(writer, functools.partial(made, path))
    finally:
        writer.close()


def produce(
    made: Builder,
    spec: str,
    workers: int | None,
    start_method: str | None,
    progress: Callable[[int, int], None],
    tasks: Sequence[_Task],
) -> None:
    """Runs the builder's function for each task, in worker processes where there are several."""
    run = functools.partial(_run, made, spec)
    count = min(workers or len(os.sched_getaffinity(0)), len(tasks))
    if count == 1:
        for done, task in enumerate(tasks):
            progress(done, len(tasks))
            run(task)
        return
    from prep._pool import CallError, FunctionPool

    pool = FunctionPool([run], count, start_method)
    # One thread of this process waits for each worker.
    threads = concurrent.futures.ThreadPoolExecutor(count, "prep-source")
    try:
        pool.start()
        calls = {threads.submit(pool.call, 0, [task]): task for task in tasks}
        for done, call in enumerate(concurrent.futures.as_completed(calls)):
            progress(done + 1, len(tasks))
            error = call.exception()
            if isinstance(error, CallError) and error.__cause__ is not None:
                raise error.__cause__
            if error is not None:
                error.add_note(f"at the source {calls[call][0]}")
                raise error
    finally:
        pool.close()
        threads.shutdown(cancel_futures=True)
