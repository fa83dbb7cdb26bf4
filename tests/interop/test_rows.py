"""Recipes of one's own data read files that pyarrow, pandas, NumPy and the standard library make."""
import base64
import csv
import gzip
import io
import json
import tarfile
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Prep, array


@pytest.fixture
def prep(tmp_path):
    return Prep(tmp_path / "home")


def register(prep, folder, kind, path, extra="", code=0):
    """Registers the files at a path, and gives the examples of `train`."""
    recipe = folder / "mine.toml"
    head, _, tail = extra.partition("---")
    recipe.write_text(f'format = 1\nname = "mine"\n{head}\n[[sources]]\npath = "{path}"\n[reader]\nkind = "{kind}"\n{tail}\n')
    if code:
        return prep.run("register", recipe, code=code).stderr
    assert prep.json("register", recipe)[-1]["status"] == "built"
    return [{name: values(value) for name, value in row["features"].items()} for row in prep.json("cat", "mine", "--split", "train")]


def values(value):
    """An array, a text, or a list of texts; nothing of what is missing."""
    if value is None:
        return None
    data = value["data"]
    if isinstance(data, list):
        return [base64.b64decode(text) for text in data]
    return array(value)


def text(value):
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "brotli", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_parquet_of_pyarrow(prep, tmp_path, compression, version):
    rows = 1000
    table = pa.table({
        "id": np.arange(rows),
        "x": np.linspace(0, 1, rows).astype(np.float32),
        "name": [f"nämé {i}" for i in range(rows)],
        "tags": [[f"t{j}" for j in range(i % 4)] for i in range(rows)],
        "maybe": [None if i % 3 else i for i in range(rows)],
    })
    pq.write_table(table, tmp_path / "a b.parquet", compression=compression, data_page_version=version, row_group_size=150)
    found = register(prep, tmp_path, "parquet", "a b.parquet")
    assert len(found) == rows
    for i in (0, 1, 149, 150, 999):
        assert int(found[i]["id"]) == i and text(found[i]["name"]) == f"nämé {i}"
        assert found[i]["x"] == table["x"][i].as_py()


def test_parquet_of_pandas_with_categories(prep, tmp_path):
    frame = pd.DataFrame({"c": pd.Categorical(["x", "y", "x"]), "n": pd.array([1, None, 3], dtype="Int64"), "f": [0.5, 1.5, 2.5]})
    frame.to_parquet(tmp_path / "a.parquet")
    found = register(prep, tmp_path, "parquet", "a.parquet")
    assert [text(row["c"]) for row in found] == ["x", "y", "x"]
    assert [float(row["f"]) for row in found] == [0.5, 1.5, 2.5]


def test_parquet_times_ask_for_a_cast(prep, tmp_path):
    pd.DataFrame({"t": pd.to_datetime(["2024-01-01"])}).to_parquet(tmp_path / "a.parquet")
    said = register(prep, tmp_path, "parquet", "a.parquet", code=1)
    assert "column `t`" in said and "timestamp" in said and "[features.t]" in said


def test_csv_of_pandas_and_of_the_standard_library(prep, tmp_path):
    names = ["plain", 'quote "x"', "comma, and\nline", "", "ünï"]
    frame = pd.DataFrame({"name": names, "n": [1, 2, 3, 4, 5], "f": [1.5, None, 2.0, -1e-3, 1e10], "b": [True, False] * 2 + [True]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    with gzip.open(tmp_path / "b.csv.gz", "wt", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(frame.columns)
        writer.writerows([["z", 6, 0.25, "True"]])
    found = register(prep, tmp_path, "csv", "*.csv*")
    assert [text(row["name"]) for row in found] == names + ["z"]
    assert [int(row["n"]) for row in found] == [1, 2, 3, 4, 5, 6]
    assert [bool(row["b"]) for row in found] == [True, False, True, False, True, True]
    assert np.float32(found[3]["f"]) == np.float32(-1e-3)


def test_json_lines_of_pandas_in_archives(prep, tmp_path):
    frame = pd.DataFrame({"a": [1, 2], "t": ["x", "日本"], "l": [[1.5], []]})
    lines = frame.to_json(orient="records", lines=True, force_ascii=False).encode()
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/a.jsonl", lines)
        archive.writestr("readme.md", "no")
    with tarfile.open(tmp_path / "b.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("b.jsonl.gz")
        packed = gzip.compress(lines)
        member.size = len(packed)
        archive.addfile(member, io.BytesIO(packed))
    for path in ("a.zip", "b.tar.gz"):
        own = Prep(tmp_path / f"home {path}")
        found = register(own, tmp_path, "jsonl", path)
        assert [text(row["t"]) for row in found] == ["x", "日本"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_numpy(prep, tmp_path, save):
    rng = np.random.default_rng(3)
    arrays = {
        "image": rng.integers(0, 255, (20, 8, 6, 3), dtype=np.uint8),
        "fortran": np.asfortranarray(rng.normal(size=(20, 3, 5)).astype(">f4")),
        "label": rng.integers(0, 9, 20),
        "name": np.array([f"n{i}ä" for i in range(20)]),
    }
    save(tmp_path / "a.npz", **arrays)
    extra = '---[features.image]\nkind = "image"\nshape = [8, 6, 3]\n[features.label]\nkind = "class_label"\n'
    found = register(prep, tmp_path, "npz", "a.npz", extra)
    for i, row in enumerate(found):
        np.testing.assert_array_equal(row["image"], arrays["image"][i])
        np.testing.assert_array_equal(row["fortran"], arrays["fortran"][i])
        assert int(row["label"]) == arrays["label"][i] and text(row["name"]) == arrays["name"][i]


def test_tfds_reads_the_layout_of_tfds(prep, tmp_path):
    import tensorflow_datasets as tfds

    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"id": i, "t": f"t{i}"}) for i in range(50)))
    register(prep, tmp_path, "jsonl", "a.jsonl", 'layout = "tfds"\nkey = "id"\nlicense = "CC0"\n---[splits]\ntrain = 0.5\ntest = 0.5\n')
    path = prep.json("show", "mine")[0]["path"]
    builder = tfds.builder_from_directory(path)
    seen = [int(row["id"]) for split in ("train", "test") for row in builder.as_data_source(split=split)]
    assert sorted(seen) == list(range(50))
