"""Datasets whose examples come from Python: `prep.write` and `prep.builder`."""

import json
import logging
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

import prep
from conftest import started_as_from_a_terminal
from prep.errors import BuildError, InvalidError, NotFoundError, PrepError, WorkerError


@pytest.fixture
def own(tmp_path):
    """A catalog that is not there yet."""
    return tmp_path / "own"


def files_in(folder):
    return sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*") if path.is_file())


def contents(folder):
    """The bytes of all files of a version."""
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def all_of(name, catalog, split="train"):
    return list(prep.open(name, split=split, catalog=catalog))


def numbers(count, start=0):
    for number in range(start, start + count):
        yield {"number": number, "text": f"number {number}"}


IMAGE = {"kind": "image", "shape": [None, None, 3]}
LABEL = {"kind": "class_label", "names": ["cat", "dog"]}


def test_what_is_written_is_what_comes_back(own):
    pixels = numpy.arange(4 * 5 * 3, dtype=numpy.uint8).reshape(4, 5, 3)
    file = next(iter(prep.open("cifar10", split="test").records([0])))
    features = {
        "image": IMAGE,
        "any": "image",
        "label": LABEL,
        "id": numpy.int32,
        "text": "text",
        "maybe": {"kind": "scalar", "dtype": "float32", "optional": True},
        "vector": prep.ArraySpec((3,), numpy.dtype("float32")),
        "ragged": ["int64"],
        "nested": {"flag": "bool", "boxes": [{"kind": "bbox"}]},
        "half": {"kind": "tensor", "shape": [2, 2], "dtype": "float16"},
        "blob": bytes,
    }
    examples = [
        {
            "image": pixels[:, ::-1],
            "any": pixels,
            "label": label,
            "id": numpy.int32(index),
            "text": "ünï",
            "maybe": maybe,
            "vector": numpy.array([1, 2, 3], ">f4"),
            "ragged": ragged,
            "nested": {"flag": index == 0, "boxes": [[0.0, 0.1, 0.5, 1.0]] * index},
            "half": numpy.eye(2, dtype=numpy.float16).T,
            "blob": memoryview(file),
        }
        for index, (label, maybe, ragged) in enumerate([("dog", None, []), (0, 2.5, (1, 2)), (numpy.int64(1), numpy.float32(7), numpy.arange(3))])
    ]
    outcome = prep.write("mixed/small", examples, features=features, catalog=own, key="id", description="Mixed.")
    assert (outcome["status"], outcome["name"], outcome["config"]) == ("built", "mixed", "small")
    found = sorted(all_of("mixed/small", own), key=lambda element: element["id"])
    assert [element["label"] for element in found] == [1, 0, 1]
    assert [element["maybe"] for element in found] == [None, 2.5, 7.0]
    assert [element["ragged"].tolist() for element in found] == [[], [1, 2], [0, 1, 2]]
    assert [len(element["nested"]["boxes"]) for element in found] == [0, 1, 2]
    for element in found:
        assert (element["image"] == pixels[:, ::-1]).all() and (element["any"] == pixels).all()
        assert (element["text"], element["blob"]) == ("ünï".encode(), file)
        assert (element["vector"] == [1, 2, 3]).all() and (element["half"] == numpy.eye(2)).all()
    # What it is described by can be given again.
    again = prep.write("again", examples, features=prep.show("mixed/small", catalog=own)["features"] | {"any": "image"}, catalog=own, key="id")
    assert again["splits"] == outcome["splits"]
    schema = pathlib.Path(outcome["path"], "features.json").read_text()
    third = prep.write("third", [{**e, "label": int(e["label"] in ("dog", 1))} for e in examples], features=json.loads(schema), catalog=own, key="id")
    assert third["splits"] == outcome["splits"]


def test_features_follow_from_all_examples(own):
    def examples():
        for index in range(50):
            yield {
                "int": index,
                "late_float": index if index < 40 else 0.5,
                "late_none": None if index == 49 else True,
                "absent": "here",
                "picture": numpy.zeros((2 + index % 2, 3), numpy.uint8),
                "one": numpy.array([index]),
                "scalar": numpy.uint16(index),
                "names": ["a"] * (index % 3),
                "inner": {"x": index} if index else {"x": 0, "y": b"\xff"},
            }

    prep.write("inferred", examples(), catalog=own)
    found = {name: (feature["kind"], feature.get("dtype"), feature.get("shape"), feature.get("optional")) for name, feature in prep.show("inferred", catalog=own)["features"].items()}
    assert found == {
        "int": ("scalar", "int64", [], None),
        "late_float": ("scalar", "float64", [], None),
        "late_none": ("scalar", "bool", [], True),
        "absent": ("text", "string", [], None),
        "picture": ("tensor", "uint8", [None, 3], None),
        "one": ("tensor", "int64", [1], None),
        "scalar": ("scalar", "uint16", [], None),
        "names": ("sequence", "string", [None], None),
        "inner": ("dict", None, None, None),
    }
    # Classes are those of the data.
    prep.write("labelled", [{"x": index, "label": "ba"[index % 2]} for index in range(4)], features={"x": int, "label": "class_label"}, catalog=own)
    assert prep.show("labelled", catalog=own)["features"]["label"]["names"] == ["a", "b"]


def test_several_splits_and_empty_ones(own, caplog):
    with caplog.at_level(logging.WARNING, "prep"):
        outcome = prep.write("splits", {"train": lambda: numbers(30), "test": numbers(5), "none": []}, catalog=own, shards=2)
    assert {name: split["examples"] for name, split in outcome["splits"].items()} == {"train": 30, "test": 5, "none": 0}
    assert "split `none` has no examples" in caplog.text
    assert outcome["splits"]["train"]["shards"] == 2
    assert sorted(element["number"] for element in all_of("splits", own)) == list(range(30))
    with pytest.raises(InvalidError, match="no examples, so their features do not show: say what they are"):
        prep.write("empty", [], catalog=own)
    assert prep.write("empty", [], features={"x": int}, catalog=own)["splits"]["train"]["examples"] == 0


def test_bytes_depend_on_the_examples_alone(own, tmp_path):
    outcomes = [
        prep.write("same", numbers(3000), catalog=own / str(index), workers=workers, memory=memory, shards=3)
        for index, (workers, memory) in enumerate([(1, None), (2, "64MiB"), (4, "1GiB")])
    ]
    first, *others = [contents(outcome["path"]) for outcome in outcomes]
    assert others == [first, first]
    # Again is up to date, other examples are refused unless asked for.
    assert prep.write("same", numbers(3000), catalog=own / "0", shards=3)["status"] == "up to date"
    with pytest.raises(BuildError, match="is there already, and was built from"):
        prep.write("same", numbers(2999), catalog=own / "0", shards=3)
    assert contents(outcomes[0]["path"]) == first
    assert prep.write("same", numbers(2999), catalog=own / "0", shards=3, overwrite=True)["status"] == "built"
    assert len(prep.open("same", catalog=own / "0")) == 2999
    # Keys order examples, whatever their positions.
    ordered = [
        prep.write("keyed", sorted(numbers(100), key=order), key="number", catalog=own / name)
        for name, order in [("up", lambda e: e["number"]), ("down", lambda e: -e["number"])]
    ]
    assert ordered[0]["fingerprint"] == ordered[1]["fingerprint"]


@pytest.mark.parametrize(
    ("bad", "features", "words"),
    [
        ({"number": "seven", "text": "x"}, {"number": int, "text": str}, "train, example 7, feature `number`: wanted an integer, found the text `seven`"),
        ({"number": 7}, {"number": int, "text": str}, "train, example 7, feature `text`: wanted a text, found nothing"),
        ({"number": 7, "text": "x", "more": 1}, {"number": int, "text": str}, "train, example 7, feature `more`: wanted no such value, found the integer 1"),
        ({"number": 300, "text": "x"}, {"number": "uint8", "text": str}, "train, example 7, feature `number`: 300"),
        ({"number": numpy.zeros(2), "text": "x"}, {"number": int, "text": str}, "found a tensor of float64"),
        ({"number": {1, 2}, "text": "x"}, None, "train, example 7, feature `number`: found `set`, wanted a number, text"),
        ({"number": [1, [object()]], "text": "x"}, None, r"train, example 7, feature `number\[1\]\[0\]`: found `object`"),
        ({"number": numpy.array(["2020"], "M8[s]"), "text": "x"}, None, "found an array of datetime64"),
        ({"number": 2**70, "text": "x"}, None, "found an integer beyond 64 bits"),
        ({"number": numpy.ma.masked_array([1], [True]), "text": "x"}, None, "found a masked array"),
        ({"number": "seven", "text": "x"}, None, "train, example 7, column `number`: found a text, where train, example 0 has an integer"),
        ({1: 7}, None, "train, example 7: found the name 1, wanted names that are `str`"),
        ([1], None, "train, example 7: wanted a dict of the values of all features, found `list`"),
    ],
)
def test_bad_examples_are_named_and_nothing_is_written(own, bad, features, words):
    def examples():
        yield from numbers(7)
        yield bad
        yield from numbers(7, 8)

    with pytest.raises(InvalidError, match=words):
        prep.write("bad", examples(), features=features, catalog=own)
    assert files_in(own) == []
    assert prep.write("bad", numbers(3), catalog=own)["status"] == "built"


@pytest.mark.parametrize("name", ["", "ünï", "a/../b", "..", "/etc/x", "a" * 300, "a b", "a:1.0.0", "a@tag", "1a", "a/b/c"])
def test_odd_names_are_refused(own, name):
    with pytest.raises(InvalidError):
        prep.write(name, numbers(1), catalog=own)
    assert files_in(own.parent) == []


def test_odd_splits_versions_and_features_are_refused(own):
    for options, words in [
        ({"split": "../x"}, "is not a split name"),
        ({"split": "all"}, "is not a split name"),
        ({"version": "1.0"}, "`version`: wanted three numbers"),
        ({"key": "numbr", "features": {"number": int, "text": str}}, "`key`: there is no feature `numbr`; did you mean `number`?"),
        ({"key": "other"}, "feature `other`: wanted a text or an integer, as it is the key, found nothing"),
        ({"features": {}}, "`features` is empty"),
        ({"features": {"x": "int65"}}, "`features.x.dtype`: `int65` is not a type"),
        ({"features": {"x": {"kind": "picture"}}}, "`picture` is not known"),
        ({"features": {"x": {"kind": "image", "shape": [2, 2, 3], "resize": [4, 4]}}}, "recipes have it"),
        ({"features": {"x": object()}}, "wanted what the feature is"),
        ({"options": "zstd:99"}, "99"),
        ({"workers": 0}, "`workers` is out of range"),
        ({"memory": "much"}, "`memory`"),
    ]:
        with pytest.raises(InvalidError, match=words):
            prep.write("odd", numbers(1), catalog=own, **options)
    with pytest.raises(InvalidError, match="`split` is for examples of one split"):
        prep.write("odd", {"train": numbers(1)}, split="test", catalog=own)
    odd = {"ünï": 1, "a b": 2, "..": 3, "x" * 500: 4}
    prep.write("odd", [odd], catalog=own)
    assert {name: value.item() for name, value in all_of("odd", own)[0].items()} == odd
    with pytest.raises(PrepError):
        prep.write("slash", [{"a/b": 1, "a": {"b": 2}}], catalog=own)


def test_what_the_code_raises_comes_out_as_it_is(own):
    class Odd(Exception):
        pass

    closed = []

    def examples():
        try:
            yield from numbers(10)
            raise Odd("inside")
        finally:
            closed.append(True)

    with pytest.raises(Odd, match="^inside\nat example 10 of train$") as raised:
        prep.write("raises", examples(), catalog=own)
    assert raised.value.args == ("inside",)
    assert files_in(own) == [] and closed == [True]
    # A generator is closed when what it gives is refused.
    with pytest.raises(InvalidError):
        prep.write("raises", examples(), features={"number": str, "text": str, "more": str}, catalog=own)
    assert closed == [True, True]
    for wrong in [KeyboardInterrupt, SystemExit, GeneratorExit]:

        def stops(wrong=wrong):
            yield {"x": 1}
            raise wrong

        with pytest.raises(wrong):
            prep.write("raises", stops(), catalog=own)
    with pytest.raises(NotFoundError):
        prep.show("raises", catalog=own)


def test_keys_that_come_twice_are_refused(own):
    examples = [{"id": 5, "x": 1}, {"id": 6, "x": 2}, {"id": 5, "x": 3}]
    with pytest.raises(BuildError, match="two examples of split `train` have the same key") as raised:
        prep.write("twice", examples, key="id", catalog=own)
    assert "train, record 0" in str(raised.value) and "train, record 2" in str(raised.value)
    assert prep.list(catalog=own) == []
    with pytest.raises(InvalidError, match="example 0, feature `x`: wanted a text or an integer, as it is the key, found the number 0.5"):
        prep.write("twice", [{"x": 0.5}], key="x", catalog=own)


def test_tfds_and_array_record_read_what_is_written(own):
    array_record = pytest.importorskip("array_record.python.array_record_module")
    tfds = pytest.importorskip("tensorflow_datasets")
    pixels = numpy.random.default_rng(0).integers(0, 256, (12, 6, 7, 3), numpy.uint8)
    examples = [
        {"image": image, "label": index % 2, "boxes": [[0, 0, 0.5, 1]] * (index % 3), "text": f"{index} ünï", "vector": numpy.full(3, index, numpy.float32)}
        for index, image in enumerate(pixels)
    ]
    features = {"image": IMAGE, "label": LABEL, "boxes": [{"kind": "bbox"}], "text": str, "vector": {"kind": "tensor", "shape": [3], "dtype": "float32"}}
    outcome = prep.write("read", {"train": examples, "test": examples[:1]}, features=features, supervised_keys=("image", "label"), catalog=own, shards=1)
    builder = tfds.builder_from_directory(outcome["path"])
    assert builder.info.splits["train"].num_examples == 12 and builder.info.supervised_keys == ("image", "label")
    assert builder.info.features["label"].names == ["cat", "dog"]
    source = builder.as_data_source(split="train")
    ours = prep.open("read", catalog=own)
    for theirs, mine in zip((source[index] for index in range(12)), ours, strict=True):
        number = int(theirs["vector"][0])
        assert (theirs["image"] == pixels[number]).all() and (mine["image"] == pixels[number]).all()
        assert theirs["label"] == number % 2 and theirs["text"].decode() == f"{number} ünï" and len(theirs["boxes"]) == number % 3
    (shard,) = pathlib.Path(outcome["path"]).glob("*train*.array_record*")
    reader = array_record.ArrayRecordReader(str(shard))
    assert reader.read(range(12)) == ours.records(range(12))
    reader.close()


# Builders.


@prep.builder("lines", features={"line": "text", "source": "text", "number": "int64"}, description="Lines.")
def lines(source):
    """Lines of a file."""
    with open(source) as file:
        for number, line in enumerate(file):
            yield {"line": line.rstrip("\n"), "source": os.path.basename(source), "number": number}


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in range(7):
        (folder / f"{name}.txt").write_text("".join(f"{name} {line}\n" for line in range(20 * name)))
    return folder


def test_builders_give_the_same_bytes_for_any_number_of_workers(own, texts):
    sources = {"train": [texts / f"{name}.txt" for name in range(5)], "test": f"{texts}/[56].txt"}
    outcomes = [prep.build(lines, sources=sources, catalog=own / str(workers), workers=workers, start_method=method) for workers, method in [(1, None), (2, "fork"), (4, "spawn")]]
    first, *others = [contents(outcome["path"]) for outcome in outcomes]
    assert others == [first, first]
    assert {name: split["examples"] for name, split in outcomes[0]["splits"].items()} == {"train": 200, "test": 220}
    assert [source["name"] for source in prep.show("lines", catalog=own / "1")["sources"]] == [f"{name}.txt" for name in range(7)]
    # The same as all of them written in one go.
    chained = prep.write("lines", {"train": [e for path in sources["train"] for e in lines(str(path))], "test": [e for name in "56" for e in lines(f"{texts}/{name}.txt")]}, catalog=own)
    assert chained["fingerprint"] == outcomes[0]["fingerprint"]
    assert lines.__doc__ == "Lines of a file." and pickle.loads(pickle.dumps(lines)) is lines


def counted(folder, name="counted", **options):
    """A builder that leaves a file for each source that it was called for."""

    @prep.builder(name, **options)
    def code(source):
        (folder / f"{os.path.basename(source)}-{time.monotonic_ns()}").touch()
        for line in pathlib.Path(source).read_text().splitlines():
            yield {"line": line}

    return code


def test_what_is_up_to_date_runs_no_code(own, texts, tmp_path):
    calls = tmp_path / "calls"
    calls.mkdir()
    called = lambda: sorted(path.name[0] for path in calls.iterdir())
    code = counted(calls)
    sources = {"train": f"{texts}/[1-3].txt"}
    assert prep.build(code, sources=sources, catalog=own, workers=2)["status"] == "built"
    assert called() == ["1", "2", "3"]
    assert prep.build(code, sources=sources, catalog=own, workers=3)["status"] == "up to date"
    assert called() == ["1", "2", "3"]
    # Another source, other code and other features are other datasets.
    (texts / "2.txt").write_text("changed\n")
    for changed in (code, counted(calls, features={"line": "text"}), counted(calls, key="line")):
        with pytest.raises(BuildError, match="is there already, and was built from"):
            prep.build(changed, sources=sources, catalog=own)
    assert called() == ["1", "2", "3"]
    assert prep.build(code, sources=sources, catalog=own, overwrite=True)["status"] == "built"
    assert len(called()) == 6
    newer = counted(calls, version="1.1.0")
    assert prep.build(newer, sources=sources, catalog=own)["version"] == "1.1.0"


def test_sources_whose_code_failed_are_the_only_ones_that_run_again(own, texts, tmp_path):
    calls, broken = tmp_path / "calls", tmp_path / "broken"
    calls.mkdir()
    broken.touch()

    @prep.builder("fails")
    def fails(source):
        (calls / f"{os.path.basename(source)}-{time.monotonic_ns()}").touch()
        yield {"line": "one"}
        if source.endswith("3.txt") and broken.exists():
            raise LookupError("broken", 7)

    for workers in (1, 2):
        with pytest.raises(LookupError) as raised:
            prep.build(fails, sources={"train": f"{texts}/*.txt"}, catalog=own, workers=workers)
        assert raised.value.args == ("broken", 7) and raised.value.__notes__ == ["at example 1 of 3.txt"]
        assert prep.list(catalog=own) == []
        if workers == 2:
            assert "worker" in str(raised.value.__cause__)
    finished = {path.name[0] for path in calls.iterdir()} - {"3"}
    before = len(list(calls.iterdir()))
    broken.unlink()
    assert prep.build(fails, sources={"train": f"{texts}/*.txt"}, catalog=own)["status"] == "built"
    again = sorted(path.name[0] for path in calls.iterdir())
    assert {"0", "1", "2"} <= finished and all(again.count(name) == 1 for name in "012") and len(again) - before <= 4
    assert not (own / "data" / ".staging").exists()


def test_code_that_dies_or_gives_nonsense(own, texts):
    @prep.builder("dies")
    def dies(source):
        yield {"line": "one"}
        if source.endswith("3.txt"):
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerError, match="was killed by SIGKILL") as raised:
        prep.build(dies, sources={"train": f"{texts}/*.txt"}, catalog=own, workers=2)
    assert any("3.txt" in note for note in raised.value.__notes__)

    @prep.builder("nonsense", features={"x": int})
    def nonsense(source):
        yield {"x": 1}
        yield {"x": "two"}

    for workers in (1, 2):
        with pytest.raises(InvalidError, match=r"\d.txt, example 1, feature `x`: wanted an integer, found the text `two`"):
            prep.build(nonsense, sources={"train": f"{texts}/*.txt"}, catalog=own, workers=workers)

    @prep.builder("mixed")
    def mixed(source):
        yield {"x": 1 if source.endswith("0.txt") else "one"}

    with pytest.raises(InvalidError, match="1.txt, example 0, column `x`: found a text, where 0.txt, example 0 has an integer"):
        prep.build(mixed, sources={"train": f"{texts}/*.txt"}, catalog=own)
    assert prep.list(catalog=own) == []


def test_wrong_sources_are_refused(own, texts):
    for sources, kind, words in [
        ({"train": texts / "none.txt"}, NotFoundError, "none.txt: could not find"),
        ({"train": f"{texts}/*.none"}, InvalidError, "no file matches"),
        ({"train": [texts / "1.txt", texts / "1.txt"]}, InvalidError, "is there twice"),
        ({"train": texts / "1.txt", "test": texts / "1.txt"}, InvalidError, "is there twice"),
        ({"train": "gopher://x/y"}, InvalidError, "`gopher:` is not supported"),
        ({}, InvalidError, "there are no splits"),
        ({"a/b": texts / "1.txt"}, InvalidError, "is not a split name"),
    ]:
        with pytest.raises(kind, match=words):
            prep.build(lines, sources=sources, catalog=own)
    with pytest.raises(InvalidError, match="takes `sources`"):
        prep.build(lines, catalog=own)
    with pytest.raises(InvalidError, match="`sources` is for builders"):
        prep.build("cifar10", sources={"train": "x"}, catalog=own)


def test_sources_may_be_folders_and_share_names(own, tmp_path):
    for folder in "ab":
        (tmp_path / folder / "part").mkdir(parents=True)
        (tmp_path / folder / "part" / "x.txt").write_text(folder)

    @prep.builder("folders")
    def folders(source):
        for path in sorted(pathlib.Path(source).rglob("*.txt")):
            yield {"text": path.read_text()}

    prep.build(folders, sources={"train": [tmp_path / "a" / "part", tmp_path / "b" / "part"]}, catalog=own)
    assert sorted(element["text"] for element in all_of("folders", own)) == [b"a", b"b"]
    assert [source["name"] for source in prep.show("folders", catalog=own)["sources"]] == ["a/part", "b/part"]


# Recipes, conversions, the catalog.


def test_recipes_are_registered_from_files_and_dicts(own, texts, tmp_path):
    recipe = {"format": 1, "name": "rows", "sources": [{"path": str(texts / "3.txt")}], "reader": {"kind": "text"}, "splits": [{"name": "train"}]}
    from_dict = prep.register(recipe, catalog=own / "dict")
    path = tmp_path / "rows.toml"
    path.write_text(f'format = 1\nname = "rows"\n[[sources]]\npath = "{texts}/3.txt"\n[reader]\nkind = "text"\n[[splits]]\nname = "train"\n')
    from_file = prep.register(path, catalog=own / "file")
    assert from_dict["fingerprint"] == from_file["fingerprint"] and from_dict["splits"]["train"]["examples"] == 60
    assert prep.register(recipe, catalog=own / "dict")["status"] == "up to date"
    for wrong, words in [
        ({**recipe, "reader": {"kind": "texts"}}, "`reader.kind`: `texts` is not known"),
        ({**recipe, "colour": "red"}, "unknown field `colour`"),
        ("cifar10", "is a built-in dataset"),
    ]:
        with pytest.raises(InvalidError, match=words):
            prep.register(wrong, catalog=own)
    with pytest.raises(NotFoundError):
        prep.register({**recipe, "sources": [{"path": str(texts / "none.txt")}]}, catalog=own)


def test_files_can_be_registered_where_they_lie(own):
    outcome = prep.write("written", numbers(20), catalog=own, shards=2)
    recipe = {"format": 1, "name": "there", "sources": [{"path": outcome["path"]}], "reader": {"kind": "tfds"}}
    registered = prep.register(recipe, in_place=True, catalog=own.parent / "other")
    assert registered["splits"]["train"]["examples"] == 20
    assert prep.show("there", catalog=own.parent / "other")["in_place"]
    with pytest.raises(InvalidError, match="`shards` does not go with `in_place`"):
        prep.register(recipe, in_place=True, shards=2, catalog=own.parent / "other")


def test_record_files_are_converted_with_the_options_of_the_command(own, tmp_path):
    written = prep.write("written", [{"id": index, "label": index % 3, "old": "x"} for index in range(60)], catalog=own, shards=2)
    shards = f"{written['path']}/*.array_record*"
    outcome = prep.convert(shards, tmp_path / "out", shards=3, order="key:id", filter="label in (0, 1)", rename={"old": "new"}, select=["id", "old"], limit=30, workers=1)
    assert (outcome["status"], outcome["records"], outcome["filtered"]) == ("converted", 30, 20)
    records = [record for shard in outcome["shards"] for record in prep.ArrayRecordDataSource(tmp_path / "out" / shard["path"])]
    features = {"id": {"kind": "scalar", "dtype": "int64"}, "new": {"kind": "text"}}
    ids = [int(prep.parse_example(record, features)["id"]) for record in records]
    assert ids == [index for index in range(60) if index % 3 < 2][:30]
    assert prep.convert(shards, tmp_path / "out", shards=3, order="key:id", filter="label in (0, 1)", rename={"old": "new"}, select=["id", "old"], limit=30)["status"] == "up to date"
    with pytest.raises(BuildError, match="replace this one with `overwrite`"):
        prep.convert(shards, tmp_path / "out", limit=3)
    for options, words in [
        ({"order": "random"}, "`order`: `random` is not an order"),
        ({"filter": "label = 3"}, "`filter`"),
        ({"max_shard_size": "0"}, "`max_shard_size` is 0"),
        ({"shards": 2, "max_shard_size": "1MB"}, "give one of them"),
        ({"on_error": "ignore"}, "`on_error`"),
        ({"dedup": "fuzzy"}, "`dedup`"),
    ]:
        with pytest.raises(InvalidError, match=words):
            prep.convert(shards, tmp_path / "other", **options)
    with pytest.raises(PrepError):
        prep.convert(tmp_path / "none.tfrecord", tmp_path / "other")
    stages = []
    prep.convert([shards], tmp_path / "more", name="more", catalog=own / "log", progress=stages.extend)
    assert all(isinstance(stage, prep.Stage) for stage in stages) and stages[-1].finished
    assert not (tmp_path / "other").exists()


def test_a_catalog_tags_removes_and_verifies(own):
    catalog = prep.catalog(own)
    for version in ("1.0.0", "1.0.1"):
        prep.write("numbers", numbers(10), version=version, catalog=own)
    assert repr(catalog) == f"prep.catalog('{own}')"
    assert [entry["version"] for entry in catalog.list()] == ["1.0.0", "1.0.1"]
    assert catalog.tag("numbers:1.0.0", "best", dry_run=True)["status"] == "planned"
    assert catalog.tag("numbers:1.0.0", "best")["status"] == "tagged"
    assert catalog.tag("numbers:1.0.0", "best")["status"] == "up to date"
    assert catalog.show("numbers@best")["version"] == "1.0.0"
    with pytest.raises(InvalidError):
        catalog.tag("numbers", "a/b")
    with pytest.raises(NotFoundError, match="number"):
        catalog.tag("number", "best")
    assert catalog.untag("numbers", "best")["version"] == "1.0.0"
    with pytest.raises(NotFoundError):
        catalog.show("numbers@best")
    reports = catalog.verify("numbers:1.0.0")
    assert all(report["ok"] for report in reports) and sum(report["records"] or 0 for report in reports) == 10
    (shard,) = pathlib.Path(catalog.show("numbers:1.0.0")["path"]).glob("*.array_record*")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    damaged = [report for report in catalog.verify("numbers:1.0.0") if not report["ok"]]
    assert [report["path"] for report in damaged] == [str(shard)] and damaged[0]["damaged"][0]["reason"]
    with pytest.raises(InvalidError, match=r"has 2 versions \(1.0.0, 1.0.1\): say which one, as in `numbers:1.0.1`, or `all`"):
        catalog.remove("numbers")
    assert [(removed["status"], removed["version"]) for removed in catalog.remove("numbers:1.0.0")] == [("removed", "1.0.0")]
    assert [removed["version"] for removed in catalog.remove("numbers", all=True, dry_run=True)] == ["1.0.1"]
    assert [entry["version"] for entry in catalog.list()] == ["1.0.1"]
    catalog.remove("numbers", all=True)
    assert catalog.list() == []
    with pytest.raises(NotFoundError):
        catalog.remove("numbers")
    with pytest.raises(InvalidError, match="`workers` is out of range"):
        catalog.verify("numbers", workers=0)


# Kills, Ctrl-C, memory.

PROGRAM = """
import os, pathlib, sys, time
import prep

@prep.builder("killed", features={"line": "text"})
def code(source):
    calls = pathlib.Path(sys.argv[1], "calls")
    (calls / f"{os.path.basename(source)}-{time.monotonic_ns()}").touch()
    # The last source waits, until it is allowed to go on.
    while source.endswith("6.txt") and not pathlib.Path(sys.argv[1], "go").exists():
        time.sleep(0.01)
    for line in pathlib.Path(source).read_text().splitlines():
        yield {"line": line}

if __name__ == "__main__":
    folder = sys.argv[1]
    print(prep.build(code, sources={"train": f"{folder}/texts/*.txt"}, catalog=f"{folder}/own", workers=2)["status"], flush=True)
"""


def wait_for(condition, what, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def children_of(process):
    text = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True).stdout
    return [int(word) for word in text.split()]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_build_that_was_stopped_goes_on_with_the_sources_that_are_left(own, texts, tmp_path, how):
    calls = tmp_path / "calls"
    calls.mkdir()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    kept = own / "data" / ".staging" / "killed" / "1.0.0" / "kept"
    with started_as_from_a_terminal(program, tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: len(list(kept.glob("*.examples"))) == 6, "six sources are finished")
        wait_for(lambda: len(list(calls.iterdir())) == 7, "the seventh is begun")
        workers = children_of(process.pid)
        assert workers
        os.kill(process.pid, how)
        _, errors = process.communicate(timeout=10)
        assert process.returncode == -how
        if how == signal.SIGINT:
            assert "KeyboardInterrupt" in errors
        # Its workers see that it is gone.
        wait_for(lambda: not any(os.path.exists(f"/proc/{worker}") for worker in workers), "workers end")
    assert not (own / "data" / "killed").exists() and prep.list(catalog=own) == []
    (tmp_path / "go").touch()
    with started_as_from_a_terminal(program, tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        output, errors = process.communicate(timeout=60)
        assert output == "built\n", errors
    names = sorted(path.name[0] for path in calls.iterdir())
    assert names == [*"0123456", "6"]
    assert sorted(element["line"] for element in all_of("killed", own)) == sorted(line.encode() for path in texts.iterdir() for line in path.read_text().splitlines())
    assert not (own / "data" / ".staging").exists()


WRITER = """
import sys, time
import prep

def examples():
    for number in range(int(sys.argv[2])):
        if number == 1000:
            print("going", flush=True)
            time.sleep(float(sys.argv[3]))
        yield {"number": number}

print(prep.write("written", examples(), catalog=sys.argv[1])["status"])
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_write_that_was_stopped_leaves_nothing(own, tmp_path, how):
    program = tmp_path / "program.py"
    program.write_text(WRITER)
    with started_as_from_a_terminal(program, own, 2000, 30, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "going\n"
        os.kill(process.pid, how)
        process.communicate(timeout=10)
        assert process.returncode == -how
    assert files_in(own) == []
    with started_as_from_a_terminal(program, own, 2000, 0, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.communicate(timeout=60)[0] == "going\nbuilt\n"
    assert len(prep.open("written", catalog=own)) == 2000


def test_memory_is_bounded(own, run):
    # 300 MB of pixels that do not compress, through 64 MiB.
    code = """
import resource, sys
import numpy, prep

rng = numpy.random.default_rng(0)
block = rng.integers(0, 256, 1 << 20, numpy.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
outcome = prep.write("large", ({"pixels": numpy.roll(block, index)} for index in range(300)), catalog=sys.argv[1], memory="64MiB", workers=2, statistics=False, options="group_size:1,uncompressed")
print(outcome["splits"]["train"]["bytes"] >= 300 << 20, outcome["spilled_bytes"] > 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    # Elements of a tensor are numbers, two bytes each at most as they are stored.
    whole, spilled, grown = run(code, str(own), timeout=120).stdout.split()
    assert (whole, spilled) == ("True", "True") and int(grown) < 200 << 10, grown


def test_examples_may_be_added_from_threads_and_code_that_writes(own):
    """A value's own code may write another dataset meanwhile; and a thread of the program goes on."""

    class Lazy:
        def __array__(self, dtype=None, copy=None):
            prep.write("inner", [{"x": 1}], catalog=own, version=f"1.0.{len(prep.list(catalog=own))}")
            return numpy.zeros(3, numpy.float32)

    results = []
    threads = [threading.Thread(target=lambda index=index: results.append(prep.write(f"thread{index}", numbers(500), catalog=own)["status"])) for index in range(4)]
    for thread in threads:
        thread.start()
    prep.write("outer", [{"lazy": Lazy()} for _ in range(2)], catalog=own)
    for thread in threads:
        thread.join()
    assert results == ["built"] * 4
    assert {entry["name"] for entry in prep.list(catalog=own)} >= {"inner", "outer", "thread0"}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"shards": -1}, InvalidError, "`shards` is -1"),
        ({"shards": 1.5}, TypeError, "`shards` is 1.5"),
        ({"workers": "2"}, TypeError, "`workers` is '2'"),
        ({"memory": 2.5}, TypeError, "`memory` is 2.5"),
        ({"name": None}, TypeError, "`name` is None"),
    ],
)
def test_arguments_are_checked_by_name(options, error, message, tmp_path):
    with pytest.raises(error, match=message):
        prep.write(**{"name": "numbers", "examples": [{"x": 1}], "catalog": tmp_path, **options})


def test_a_builders_identity_has_what_its_function_closes_over():
    def made(number, default=1):
        return prep.builder("numbers")(lambda source, factor=default: ({"x": number * factor} for _ in range(3)))

    class Maker:
        def __init__(self, number):
            self.number = number

        def examples(self, source):
            yield {"x": self.number}

    one, other = prep.builder("numbers")(lambda source: [{"x": 1}]), prep.builder("numbers")(lambda source: [{"x": 2}])
    builders = [made(1), made(100), made(1, 2), one, other, *(prep.builder("numbers")(Maker(number).examples) for number in (1, 2))]
    identities = [builder.identity() for builder in builders]
    assert len({*identities}) == len(builders)
    assert identities[0] == made(1).identity()


def test_a_main_program_without_a_guard_is_told_so(own, texts, tmp_path):
    program = tmp_path / "unguarded.py"
    program.write_text(
        "import prep\n"
        "@prep.builder('lines')\n"
        "def lines(source):\n"
        "    yield {'x': 1}\n"
        f"prep.build(lines, sources={{'train': {[str(path) for path in sorted(texts.iterdir())]!r}}}, workers=2, start_method='spawn', catalog={str(own)!r})\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "__main__" in done.stderr


def test_one_text_is_a_list_of_one_and_other_shapes_are_told(own, tmp_path):
    outcome = prep.write("numbers", [{"x": 1}], urls="http://example.org", catalog=own)
    described = json.loads((pathlib.Path(outcome["path"]) / "dataset_info.json").read_text())
    assert described["location"]["urls"] == ["http://example.org"]
    with pytest.raises(InvalidError, match="`inputs` is empty"):
        prep.convert([], tmp_path / "out")
    with pytest.raises(TypeError, match="`rename` is"):
        prep.convert("a.tfrecord", tmp_path / "out", rename=["a"])
    with pytest.raises(InvalidError, match="for each split its files"):
        prep.build(lines, sources="x/*", catalog=own)
