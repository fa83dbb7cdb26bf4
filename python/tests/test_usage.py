"""The typed example program, and the examples in the documentation."""

import doctest
import importlib
import pathlib
import re

import pytest
import usage
from conftest import ROOT, blocks_of_the_readme

DATA = pathlib.Path(__file__).parent / "data"


def test_the_typed_program_runs():
    assert usage.records(DATA / "words.array_record") == (3, b"alpha", [b"gamma", b"beta"])
    assert usage.train("cifar10", 20)["sample_position"] == 300 + 2 * 16
    length, label, names = usage.look("cifar10")
    assert length == 60 and 0 <= label < 10 and names == ["cifar10"]
    labels, flip = usage.pipeline("cifar10")
    assert len(labels) == 8 and min(labels) > 4 and flip.parameters()["probability"] == 0.25


def test_the_python_block_of_the_readme_runs():
    readme = ROOT / "README.md"
    (code,) = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    names = {}
    exec(code, names)
    assert names["image"].shape == (64, 32, 32, 3) and names["label"].dtype == "int64"
    assert len(names["files"]) == len(names["dataset"]) == 60 and len(names["source"]) == 300


@pytest.mark.parametrize(
    "name",
    ["prep", "prep.errors", "prep._spec", "prep._features", "prep._api", "prep._writing", "prep._array_record", "prep._pipeline", "prep.transforms"]
    + [f"prep.grain.{name}" for name in ("sources", "sharding", "samplers", "_loader")]
    + ["prep.jax"],
)
def test_the_examples_in_the_documentation_hold(name, monkeypatch, tmp_path):
    monkeypatch.chdir(pathlib.Path(__file__).parent.parent)
    # What examples make goes into a catalog of their own.
    failed, _ = doctest.testmod(importlib.import_module(name), extraglobs={"CATALOG": str(tmp_path)})
    assert failed == 0


def test_the_datasets_in_the_readme_of_the_package_are_made(tmp_path, monkeypatch):
    import prep

    monkeypatch.setenv("PREP_CATALOG", str(tmp_path))
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "python/README.md").read_text(), re.DOTALL)
    for block in blocks:
        if "prep.write(" in block or "@prep.builder(" in block:
            exec(block, {"__name__": "readme"})
    assert {entry["name"]: entry["splits"]["train"]["examples"] > 100 for entry in prep.list()} == {"noise": True, "words": True}


def test_the_pipeline_in_the_readme_of_the_package_runs():
    names = {}
    (code,) = (block for block in blocks_of_the_readme() if "prep.MapDataset.load" in block)
    exec(code, names)
    assert names["first"]["image"].shape == (64, 32, 32, 3)
    assert sum(len(batch["label"]) for batch in names["rest"]) == 128
