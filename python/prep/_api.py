"""`open`, `load`, `list`, `show`, `build`, `write`: what most programs need."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, List, Literal, TypeAlias, Union

from prep import _core, _writing
from prep._catalog import Catalog
from prep._checks import whole
from prep._core import Dataset, Loader
from prep._features import declared
from prep._progress import Progress, Stage, staged
from prep._spec import Element
from prep._writing import Builder, Examples, PathLike
from prep.errors import InvalidError

_log = logging.getLogger("prep")

# Or `window:N`.
Order: TypeAlias = Union[Literal["prep", "grain", "source"], str]


def open(name: str, *, split: str = "train", catalog: str | os.PathLike[str] | None = None) -> Dataset:
    """Opens a split of a dataset for random access. Reads the catalog and the manifest, and no shard.

    >>> dataset = open("cifar10", split="test[:50%]")
    >>> len(dataset), dataset[0]["image"].shape, dataset[-1]["label"].dtype
    (30, (32, 32, 3), dtype('int64'))
    >>> dataset[[3, 1, 4]]["image"].shape, dataset[10:20]["label"].shape
    ((3, 32, 32, 3), (10,))

    Args:
        name: `name`, `name/config`, `name:version`, `name@tag`.
        split: As TFDS reads it: `train`, `train[:80%]`, `train[1000:2000]`, `train+test`.
        catalog: Folder or URL; default `$PREP_CATALOG`, else a folder under `$PREP_HOME`.

    Raises:
        NotFoundError: No such dataset, version or tag (near names are told).
        InvalidError: The split does not fit.
    """
    return _core.open(name, split, _path(catalog))


def load(
    name: str,
    *,
    split: str | None = None,
    batch_size: int,
    seed: int | None = None,
    num_epochs: int | None = None,
    drop_remainder: bool = False,
    shard_index: int = 0,
    shard_count: int = 1,
    order: Order | None = None,
    num_threads: int | None = None,
    prefetch: int | None = None,
    prefetch_bytes: int | None = None,
    columns: Sequence[str] | None = None,
    decode: bool = True,
    cache: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    on_error: str = "fail",
    profile: bool = False,
    catalog: str | os.PathLike[str] | None = None,
    state: dict[str, Any] | str | None = None,
) -> Loader:
    """Opens a stream of shuffled batches: dicts of NumPy arrays, made ahead by threads of Rust, without a copy.

    >>> loader = load("cifar10", split="test", batch_size=16, seed=42, num_epochs=1)
    >>> len(loader), [batch["image"].shape[0] for batch in loader]
    (4, [16, 16, 16, 12])
    >>> batch = next(load("cifar10", batch_size=16, drop_remainder=True))
    >>> {name: (array.shape, str(array.dtype)) for name, array in batch.items()}
    {'id': ((16,), 'object'), 'image': ((16, 32, 32, 3), 'uint8'), 'label': ((16,), 'int64')}

    Features of one shape are arrays with the batch as first dimension; byte strings and text are object arrays of `bytes`; features
    whose shape varies from row to row are lists of arrays, sequences in sequences lists of lists of them; features that may be missing
    are masked arrays, or `None` in the list; features in features are dicts. An array may be kept and written to: its memory goes back to
    the loader when the last array of the batch is gone.

    The stream depends on dataset, split, seed and order only: not on threads, prefetch or the number of hosts, which deal the rows of
    one global stream between them. Going on from a state gives the batches that would have followed:

    >>> loader = load("cifar10", batch_size=16, seed=1)
    >>> first, state, second = next(loader), loader.state(), next(loader)
    >>> again = next(load("cifar10", batch_size=16, state=state))
    >>> bool((again["label"] == second["label"]).all())
    True

    Args:
        name: `name`, `name/config`, `name:version`, `name@tag`.
        split: As TFDS reads it. Default: the state's, else `train`.
        batch_size: Rows of a batch on this host.
        seed: Of the shuffle, 0 to 2**64 - 1. Default: the state's, else 0.
        num_epochs: After which the stream ends, counted from its start. Default: it is endless.
        drop_remainder: Leaves out the last batch of an epoch where it is not full: all arrays have one shape then.
        shard_index: Which host this is, from 0.
        shard_count: Number of hosts.
        order: `prep`, `grain` (`MapDataset.shuffle(seed)`, bit for bit), `source` (no shuffle), or `window:N`: windows of N records are shuffled, and
            the records in each, so that near ones are read together, as object stores need. Default: the state's, else `prep`.
        num_threads: That read and decode; 0: in the caller's. Default: one per core.
        prefetch: Batches made ahead. Default: two a thread.
        prefetch_bytes: A limit beside that. Default: 256 MiB.
        columns: Features to deliver; `a/b` is the feature `b` nested in `a`. Default: all.
        decode: Whether images become pixels; else they stay PNG or JPEG bytes.
        cache: Folder that keeps what is read of object stores, for all processes of this host.
        cache_size: Most that it takes on disk: bytes, or text such as `"200G"`. Default: 16 GiB.
        on_error: What to do with a damaged record: `fail`, `skip` or `skip:MAX`; what is left out is counted in `Loader.metrics()`.
        profile: Whether `Loader.metrics()` tells reading and decoding apart, which costs some 50 ns a record.
        catalog: Folder or URL; default `$PREP_CATALOG`, else a folder under `$PREP_HOME`.
        state: Where to go on: what `Loader.state()` gave.

    Raises:
        NotFoundError: No such dataset, version or tag.
        InvalidError: An option that cannot be right.
        StateError: The state is of another stream; both sides are named.
    """
    options = {
        "batch_size": batch_size,
        "seed": seed,
        "num_epochs": num_epochs,
        "drop_remainder": drop_remainder,
        "shard_index": shard_index,
        "shard_count": shard_count,
        "order": order,
        "num_threads": num_threads,
        "prefetch": prefetch,
        "prefetch_bytes": prefetch_bytes,
        "columns": None if columns is None else [*columns],
        "decode": decode,
        "cache": None if cache is None else os.path.abspath(os.fspath(cache)),
        "cache_size": None if cache_size is None else str(cache_size),
        "on_error": on_error,
        "profile": profile,
    }
    return _core.load(name, split, _path(catalog), options, state)


def parse_example(record: bytes, features: Dataset | Mapping[str, Any], *, columns: Sequence[str] | None = None, decode: bool = True) -> Element:
    """Decodes one record, a serialized `tf.train.Example`, as elements of a dataset are decoded: for records that come from elsewhere.

    >>> dataset = open("cifar10", split="test")
    >>> example = parse_example(dataset.record(3), dataset, columns=["image", "label"])
    >>> bool((example["image"] == dataset[3]["image"]).all()), sorted(example)
    (True, ['image', 'label'])
    >>> bool(parse_example(dataset.record(3), {"label": int})["label"] == example["label"])
    True

    Args:
        record: `Dataset.record(index)`, or what any other reader gives.
        features: The dataset whose schema it has, or what features it has, as for `prep.write`.
        columns: Features to decode. Default: all.
        decode: Whether images become pixels; else they stay PNG or JPEG bytes.

    Raises:
        DamagedError: It is no record of that schema.
    """
    schema = features if isinstance(features, Dataset) else json.dumps(declared(features))
    return _parser(schema, None if columns is None else tuple(columns), decode).parse(record)


@functools.lru_cache(maxsize=16)
def _parser(schema: Dataset | str, columns: tuple[str, ...] | None, decode: bool) -> _core.ExampleParser:
    return _core.ExampleParser(schema, columns, decode)


def list(*, catalog: str | os.PathLike[str] | None = None) -> List[dict[str, Any]]:
    """Lists the datasets of the catalog: `name`, `config`, `version`, `splits`, `fingerprint`, `path`, as `prep list --json`.

    >>> [(entry["name"], entry["splits"]["test"]["examples"]) for entry in list()]
    [('cifar10', 60)]

    Args:
        catalog: Folder or URL; default `$PREP_CATALOG`, else a folder under `$PREP_HOME`.
    """
    return Catalog(catalog).list()


def show(name: str, *, catalog: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Describes one dataset: as `list`, and `features`, `sources`, `statistics`, `tags`, as `prep show --json`.

    >>> entry = show("cifar10")
    >>> entry["version"], entry["features"]["image"]["shape"], entry["features"]["label"]["names"][:2]
    ('3.0.2', [32, 32, 3], ['airplane', 'automobile'])

    Raises:
        NotFoundError: No such dataset, version or tag (near names are told).
    """
    return Catalog(catalog).show(name)


def build(
    recipe: PathLike | Builder,
    *,
    from_: PathLike | Sequence[PathLike] = (),
    sources: Mapping[str, PathLike | Sequence[PathLike]] | None = None,
    catalog: PathLike | None = None,
    data_dir: PathLike | None = None,
    workers: int | None = None,
    memory: int | str | None = None,
    shards: int | None = None,
    on_error: str = "fail",
    overwrite: bool = False,
    checksum: bool = True,
    statistics: bool = True,
    dry_run: bool = False,
    start_method: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Builds a dataset into ArrayRecord shards and registers it in the catalog, as the command `prep build`.

    Blocks until it is done. Ctrl-C stops it within a second and keeps what is finished: the same call goes on from there. What is
    there already is left alone.

    >>> outcome = build("cifar10", from_="../tests/golden/cifar10", checksum=False)
    >>> outcome["status"], outcome["version"], outcome["splits"]["test"]["examples"]
    ('up to date', '3.0.2', 60)

    A builder (`prep.builder`) is called for each source, in `workers` processes; the dataset does not depend on their number. A source whose
    examples are whole is not asked for them again by a call that goes on. The hashes of sources and of the function's code tell whether the
    dataset is up to date.

    Args:
        recipe: A built-in dataset (`cifar10`, `cifar100`, `fashion_mnist`, `kmnist`, `mnist`), a recipe file, or a builder.
        from_: Files, folders or URLs that hold the sources, in place of the recipe's addresses.
        sources: Of a builder: for each split files, folders, patterns or URLs (http, s3, gs, az).
        catalog: Folder or URL; default `$PREP_CATALOG`, else a folder under `$PREP_HOME`.
        data_dir: Where datasets lie. Default: `data` in the catalog.
        workers: Threads, and processes that run a builder. Default: one per core. The result does not depend on it.
        memory: Budget: bytes, or text such as `"4GiB"`. Default: a quarter of the machine's. The result does not depend on it.
        shards: Of each split. Default: the recipe decides.
        on_error: What to do with a damaged record: `fail`, `skip` or `skip:MAX`.
        overwrite: Replaces a different build of the same version.
        checksum: Whether a source has to have the size and SHA-256 that the recipe states.
        statistics: Whether statistics of all features are counted and kept; see `show`. A build without is a different one.
        dry_run: Only says what would be done.
        start_method: Of a builder's processes: `fork`, `spawn` or `forkserver`. Default: as `multiprocessing` was told, else `fork` on Linux.
        progress: Called some five times a second, with all stages so far. What it raises stops the build.

    Returns:
        `status` (`built`, `up to date`, `planned`), `name`, `config`, `version`, `path`, `fingerprint`, `splits` and more.

    Raises:
        BuildError, StorageError, DamagedError, NotFoundError: What stopped it; what was finished is kept. A `BuildError` too where another build
            of this version is there already: see `overwrite`.
        ConflictError: Others have committed another build of this version meanwhile.
    """
    options = _options(catalog, data_dir, workers, memory, shards, on_error, overwrite, statistics, dry_run)
    if isinstance(recipe, Builder):
        from prep._processes import refuse_while_main_is_imported

        refuse_while_main_is_imported()
        if not isinstance(sources, Mapping) or from_:
            raise InvalidError(f"{recipe!r} takes `sources`: for each split its files")
        spec = recipe.spec(sources)
        return _core.build_code(
            spec,
            recipe.identity(),
            _writing.places_of(sources),
            functools.partial(_writing.produce, recipe, spec, workers, start_method, _told(progress)),
            options=options,
            progress=staged(progress),
            note=_note,
        )
    if sources is not None:
        raise InvalidError("`sources` is for builders; a recipe names its own, and `from_` says where they are")
    places = [from_] if isinstance(from_, (str, os.PathLike)) else from_
    return _core.build(
        os.fspath(recipe),
        as_json=False,
        in_place=False,
        sources=[os.fspath(place) for place in places],
        checksum=checksum,
        options=options,
        progress=staged(progress),
        note=_note,
    )


def register(
    recipe: PathLike | Mapping[str, Any],
    *,
    in_place: bool = False,
    from_: PathLike | Sequence[PathLike] = (),
    catalog: PathLike | None = None,
    data_dir: PathLike | None = None,
    workers: int | None = None,
    memory: int | str | None = None,
    shards: int | None = None,
    on_error: str = "fail",
    overwrite: bool = False,
    statistics: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Makes a dataset of your own out of a recipe, and registers it in the catalog, as the command `prep register`.

    >>> recipe = {"format": 1, "name": "lines", "sources": [{"path": "tests/data/README.md"}], "reader": {"kind": "text"}, "splits": [{"name": "train"}]}
    >>> outcome = register(recipe, catalog=CATALOG)
    >>> outcome["status"], outcome["splits"]["train"]["examples"] > 3
    ('built', True)

    Args:
        recipe: The path of a recipe, a TOML file; or a dict that says what one would, with paths from the working directory.
        in_place: Leaves TFRecord and ArrayRecord files and folders of TFDS where they are, and writes only what describes them.
        from_: Files and folders that hold the sources, in place of the recipe's.
        catalog: Folder or URL; default `$PREP_CATALOG`, else a folder under `$PREP_HOME`.
        data_dir: Where datasets lie. Default: `data` in the catalog.
        workers: Threads. Default: one per core.
        memory: Budget: bytes, or text such as `"4GiB"`. Default: a quarter of the machine's.
        shards: Of each split. Default: the recipe decides.
        on_error: What to do with a damaged record: `fail`, `skip` or `skip:MAX`.
        overwrite: Replaces a different build of the same version.
        statistics: Whether statistics of all features are counted and kept.
        dry_run: Only says what would be done.
        progress: Called some five times a second, with all stages so far. What it raises stops it.

    Returns:
        What `build` returns.

    Raises:
        InvalidError: The recipe is none: field, what was found and what was wanted.
        BuildError, StorageError, DamagedError, NotFoundError: As `build`.
    """
    given = None if isinstance(recipe, Mapping) else os.fspath(recipe)
    if given is not None and given.split("/")[0] in _core.BUILT_IN and not os.path.exists(given):
        raise InvalidError(f"`{recipe}` is a built-in dataset: `prep.build` makes it; `register` takes the path of a recipe")
    places = [from_] if isinstance(from_, (str, os.PathLike)) else from_
    return _core.build(
        json.dumps(recipe) if given is None else given,
        as_json=given is None,
        in_place=in_place,
        sources=[os.fspath(place) for place in places],
        checksum=True,
        options=_options(catalog, data_dir, workers, memory, shards, on_error, overwrite, statistics, dry_run),
        progress=staged(progress),
        note=_note,
    )


def convert(
    inputs: PathLike | Sequence[PathLike],
    output: PathLike,
    *,
    name: str = "data",
    shards: int | str | None = None,
    max_shard_size: int | str | None = None,
    order: str = "source",
    options: str | None = None,
    filter: str | None = None,
    select: Sequence[str] | None = None,
    rename: Mapping[str, str] | None = None,
    limit: int | None = None,
    dedup: str | None = None,
    catalog: PathLike | None = None,
    on_error: str = "fail",
    overwrite: bool = False,
    dry_run: bool = False,
    workers: int | None = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Converts TFRecord and ArrayRecord files into a folder of ArrayRecord shards, as the command `prep convert`.

    Records keep their order, checksums are verified, and the output appears as a whole when all of it is written and read back. A call that
    was stopped goes on when it is given again.

    >>> outcome = convert("tests/data/words.array_record", CATALOG + "/converted", shards=2, options="group_size:1,uncompressed")
    >>> outcome["status"], outcome["records"], [shard["records"] for shard in outcome["shards"]]
    ('converted', 3, [2, 1])

    Args:
        inputs: Files, patterns, folders of record files, a TFDS folder, or URLs (http, s3, gs, az).
        output: The folder to make, which may be in a store.
        name: What the shards are called: `NAME.array_record-00000-of-00008`; in a catalog, the name of the dataset.
        shards: A number, `"same"` (one for each input) or `"auto"` (as TFDS). Default: `auto`; for a TFDS folder `same`.
        max_shard_size: As many shards as keep each below this size of its records, on average; in place of `shards`.
        order: `source`, `shuffle:SEED` or `key:FEATURE`.
        options: ArrayRecord options of the shards. Default: `group_size:1,zstd:3`.
        filter: Keeps records for which this holds: `"label in (1, 2) and not name == 'cat'"`.
        select: Keeps these features only.
        rename: New names of features by old ones.
        limit: Writes at most so many records: the first ones of the order.
        dedup: Leaves out records that came before: `exact`, or `exact:FEATURE` for the values of a feature.
        catalog: Registers the output in this catalog. Default: in none.
        on_error: What to do with a damaged record: `fail`, `skip` or `skip:MAX`.
        overwrite: Replaces something else in the output's place that prep made.
        dry_run: Only says what would be done.
        workers: Threads. Default: one per core. The result does not depend on it.
        memory: Budget: bytes, or text such as `"4GiB"`. Default: a quarter of the machine's.
        progress: Called some five times a second, with all stages so far. What it raises stops it.

    Returns:
        `status` (`converted`, `up to date`, `planned`), `path`, `records`, `shards`, `inputs` and more, as `prep convert --json`.

    Raises:
        InvalidError: An option that means nothing.
        BuildError, StorageError, DamagedError, NotFoundError: What stopped it.
    """
    if shards is not None and max_shard_size is not None:
        raise InvalidError("`shards` and `max_shard_size` both say how many shards there are: give one of them")
    places = [inputs] if isinstance(inputs, (str, os.PathLike)) else [*inputs]
    if not places:
        raise InvalidError("`inputs` is empty: name files or folders")
    if not isinstance(rename, (Mapping, type(None))):
        raise TypeError(f"`rename` is {rename!r}, wanted a dict of old names to new ones")
    words = {
        "name": name,
        "shards": None if shards is None else str(shards),
        "max_shard_size": None if max_shard_size is None else str(max_shard_size),
        "order": order,
        "options": options,
        "filter": filter,
        "select": None if select is None else ",".join(select),
        "rename": None if rename is None else ",".join(f"{old}={new}" for old, new in rename.items()),
        "limit": limit,
        "dedup": dedup,
        "catalog": _path(catalog),
    }
    return _core.convert(
        [os.fspath(place) for place in places],
        os.fspath(output),
        words=words,
        job=_options(None, None, workers, memory, None, on_error, overwrite, True, dry_run),
        progress=staged(progress),
        note=_note,
    )


def catalog(location: PathLike | None = None) -> Catalog:
    """The catalog at a place, to list, show, tag, remove and verify what is in it.

    >>> write("cubes", [{"x": x, "cube": x**3} for x in range(10)], catalog=CATALOG)["status"]
    'built'
    >>> own = catalog(CATALOG)
    >>> own.tag("cubes", "best")["status"], own.show("cubes@best")["version"]
    ('tagged', '1.0.0')
    >>> all(report["ok"] for report in own.verify("cubes"))
    True

    Args:
        location: Folder or URL; default `$PREP_CATALOG`, else a folder under `$PREP_HOME`.
    """
    return Catalog(location)


def write(
    name: str,
    examples: Examples | Mapping[str, Examples],
    *,
    features: Mapping[str, Any] | None = None,
    split: str | None = None,
    version: str = "1.0.0",
    key: str | None = None,
    description: str = "",
    citation: str = "",
    licence: str | None = None,
    urls: Sequence[str] = (),
    supervised_keys: tuple[str, str] | None = None,
    catalog: PathLike | None = None,
    data_dir: PathLike | None = None,
    workers: int | None = None,
    memory: int | str | None = None,
    shards: int | None = None,
    options: str | None = None,
    overwrite: bool = False,
    statistics: bool = True,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Writes examples into ArrayRecord shards and registers them in the catalog: the same engine, layout, order and commit as `build`.

    Examples are dicts of numbers, text, bytes, NumPy arrays (and what becomes one), lists, dicts, and None for what is missing. They are taken
    one by one in the calling thread, compared with `features` at once, and kept in a file without a name beside the data until they are built:
    memory is bounded, and there is room needed for about twice the data. What their code raises comes out as it is; then nothing was written.

    >>> outcome = write("squares", ({"x": x, "square": x * x} for x in range(100)), catalog=CATALOG)
    >>> outcome["status"], outcome["splits"]["train"]["examples"]
    ('built', 100)
    >>> sorted(int(element["square"]) for element in open("squares", catalog=CATALOG))[:4]
    [0, 1, 4, 9]

    `features` has an entry for each feature, in the words of recipes (`{"kind": "image", "shape": [None, None, 3]}`), as `prep.show` gives them, or
    as a `features.json` of TFDS has them. Short forms: `"int64"` or `numpy.int64` for a scalar, `"text"`, `"image"` for a picture of any size,
    `{"kind": "class_label", "names": [..]}`, `[feature]` for a sequence, a dict for nested features, an `ArraySpec` for a tensor;
    `"optional": True` for what may be missing. An image takes pixels, which are stored as PNG, or the bytes of a file, which are kept. Without `features`
    they are what all examples have in common: arrays are tensors, and a first size that differs varies.

    Floats are kept with 32 bits, as TFDS keeps them, also where they are read as float64, and ints beside floats become floats; a tensor with
    `"encoding": "bytes"` or `"zlib"` is kept bit for bit.

    Args:
        name: `name` or `name/config`.
        examples: An iterable, or a function without arguments that gives one; for several splits a dict of them.
        features: What examples hold. Default: what all of them have in common.
        split: The name of the only split. Default: `train`.
        version: Of the dataset.
        key: The feature that orders examples, an integer, text or bytes, unique in a split. Default: the position.
        description: What it is.
        citation: How to cite it.
        licence: Under which it may be used.
        urls: Home pages.
        supervised_keys: The features that are input and target.
        catalog: Folder or URL; default `$PREP_CATALOG`, else a folder under `$PREP_HOME`.
        data_dir: Where datasets lie. Default: `data` in the catalog.
        workers: Threads. Default: one per core. The result does not depend on it.
        memory: Budget: bytes, or text such as `"4GiB"`. Default: a quarter of the machine's. The result does not depend on it.
        shards: Of each split. Default: by its size, as TFDS.
        options: ArrayRecord options of the shards. Default: `group_size:1,zstd:3`.
        overwrite: Replaces other examples of the same version.
        statistics: Whether statistics of all features are counted and kept; see `show`.
        progress: Called some five times a second once all examples are there, with all stages so far.

    Returns:
        What `build` returns; `up to date` where the version is there and has the same examples.

    Raises:
        InvalidError: An example that does not fit: which one, the feature, what was found and what was wanted. Or an argument.
        BuildError: Other examples are there under this version already: see `overwrite`. Or two examples have one key.
        StorageError: The disk or the store refused.
    """
    of_split = _writing.splits_of(examples, split)
    spec = _writing.spec_of(
        name,
        version=version,
        features=declared(features),
        key=key,
        description=description,
        citation=citation,
        licence=licence,
        urls=_writing.listed(urls),
        supervised_keys=supervised_keys,
        options=options,
        splits=[*of_split],
    )
    build_options = _options(catalog, data_dir, workers, memory, shards, "fail", overwrite, statistics, False)
    files: List[_core.ExampleWriter] = []
    try:
        for split_name, of_this in of_split.items():
            files.append(_core.ExampleWriter(spec, split_name, catalog=_path(catalog), data_dir=_path(data_dir)))
            _writing.fill(files[-1], of_this)
        return _core.write(spec, files, options=build_options, progress=staged(progress), note=_note)
    finally:
        for file in files:
            file.close()


def _options(
    catalog: PathLike | None,
    data_dir: PathLike | None,
    workers: int | None,
    memory: int | str | None,
    shards: int | None,
    on_error: str,
    overwrite: bool,
    statistics: bool,
    dry_run: bool,
) -> dict[str, Any]:
    return {
        "catalog": _path(catalog),
        "data_dir": _path(data_dir),
        "workers": None if workers is None else whole(workers, "workers"),
        "memory": memory if memory is None or isinstance(memory, str) else str(whole(memory, "memory")),
        "shards": None if shards is None else whole(shards, "shards"),
        "on_error": on_error,
        "overwrite": overwrite,
        "statistics": statistics,
        "dry_run": dry_run,
    }


def _note(is_warning: bool, text: str) -> None:
    _log.log(logging.WARNING if is_warning else logging.INFO, "%s", text)


def _told(progress: Progress | None) -> Callable[[int, int], None]:
    """For the part of a build that is Python's."""

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress([Stage("run code on sources", "files", done, total, done == total)])

    return tell


def _path(catalog: PathLike | None) -> str | None:
    return None if catalog is None else os.fspath(catalog)
