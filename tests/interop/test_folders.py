"""Folders of pictures that Pillow writes are to us what they are to Hugging Face's `imagefolder`; tars that webdataset writes are read."""
import io
import json

import datasets
import numpy as np
import pytest
import webdataset
from conftest import Prep, array
from PIL import Image

FORMATS = {"png": "PNG", "jpg": "JPEG", "jpeg": "JPEG", "gif": "GIF", "bmp": "BMP", "webp": "WEBP", "tiff": "TIFF"}


@pytest.fixture
def prep(tmp_path):
    return Prep(tmp_path / "home")


def picture(seed, kind="PNG"):
    pixels = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def infer(prep, path):
    """Infers a recipe, registers it, and gives what was found."""
    recipe = path.parent / "mine.toml"
    found = prep.json("infer", path, "-o", recipe, "--name", "mine", "--overwrite")[0]
    assert prep.json("register", recipe, "--overwrite")[-1]["status"] == "built"
    return found


def fill(folder, layout):
    seeds = iter(range(1000))
    for place, names in layout.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / place / name).write_bytes(picture(next(seeds), FORMATS[name.rsplit(".", 1)[1].lower()]))


LAYOUTS = {
    "classes": {"cat": ["1.png", "2.png"], "dög": ["ünï côde.png", ".hidden.png"], "a b": ["x.y.png"]},
    "splits": {"train/cat": ["1.png"], "train/dog": ["2.png"], "test/cat": ["1.png"], "test/dog": ["3.png"]},
    "flat": {"": ["1.png", "2.png"]},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders_have_the_rows_of_imagefolder(prep, tmp_path, layout):
    folder = tmp_path / "pictures"
    fill(folder, LAYOUTS[layout])
    wanted = datasets.load_dataset("imagefolder", data_dir=str(folder), cache_dir=str(tmp_path / "cache"))
    found = infer(prep, folder)
    assert found["splits"] == {split: rows.num_rows for split, rows in wanted.items()}
    for split, rows in wanted.items():
        ours = prep.examples("mine", split)
        has_label = "label" in rows.features
        assert has_label == ("label" in ours[0])
        if has_label:
            assert sorted(found["classes"]["label"]) == rows.features["label"].names

        def key(image, label):
            return np.asarray(image).tobytes(), label

        theirs = sorted(key(row["image"].convert("RGB"), row.get("label")) for row in rows)
        assert sorted(key(row["image"], int(row["label"]) if has_label else None) for row in ours) == theirs


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_metadata_are_those_of_imagefolder(prep, tmp_path, kind):
    folder = tmp_path / "pictures"
    fill(folder, {"": ["1.png", "2.png"], "deep": ["3.png"]})
    rows = [("1.png", "one, \"quoted\"", 1), ("2.png", "zwölf", 2), ("deep/3.png", "x", 3)]
    if kind == "csv":
        import csv
        with open(folder / "metadata.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerows([("file_name", "text", "number"), *rows])
    else:
        lines = [json.dumps({"file_name": name, "text": text, "number": number}) for name, text, number in rows]
        (folder / "metadata.jsonl").write_text("\n".join(lines), encoding="utf-8")
    wanted = datasets.load_dataset("imagefolder", data_dir=str(folder), cache_dir=str(tmp_path / "cache"))["train"]
    infer(prep, folder)
    ours = prep.examples("mine", "train")
    assert sorted((row["text"].decode(), int(row["number"])) for row in ours) == sorted((row["text"], row["number"]) for row in wanted)


def test_all_formats_of_pillow_are_stored_as_they_are(prep, tmp_path):
    folder = tmp_path / "pictures"
    fill(folder, {"": [f"{i}.{ending}" for i, ending in enumerate(FORMATS)]})
    found = infer(prep, folder)
    assert found["splits"] == {"train": len(FORMATS)} and found["damaged"] == 0


def test_tars_of_webdataset(prep, tmp_path):
    folder = tmp_path / "tars"
    folder.mkdir()
    for shard in range(2):
        with webdataset.TarWriter(str(folder / f"train-{shard}.tar")) as writer:
            for i in range(5):
                index = 5 * shard + i
                writer.write({
                    "__key__": f"dir.v1/sample{index:03}",
                    "png": picture(index),
                    "cls": index % 3,
                    "json": {"index": index, "tags": ["a"] * (index % 3)},
                    "txt": f"töxt {index}",
                    "npy": np.full((2, 3), index, np.float32),
                })
    found = infer(prep, folder)
    assert found["kind"] == "webdataset" and found["splits"] == {"train": 10}
    # Nested values, those of `json`, are not arrays.
    rows = [row["features"] for row in prep.json("cat", "mine", "--split", "train")]
    decoded = [{name: array(value) for name, value in row.items() if "data" in value} for row in rows]
    ours = {row["__key__"].decode(): row for row in decoded}
    theirs = webdataset.WebDataset([str(folder / f"train-{shard}.tar") for shard in range(2)], shardshuffle=False).decode("rgb8")
    count = 0
    for sample in theirs:
        row = ours[sample["__key__"]]
        assert int(row["cls"]) == sample["cls"] and row["txt"].decode() == sample["txt"]
        np.testing.assert_array_equal(row["png"], sample["png"])
        np.testing.assert_array_equal(row["npy"], sample["npy"])
        count += 1
    assert count == 10
