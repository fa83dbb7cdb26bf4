"""Makes the files of this folder: `python make.py`, with pyarrow 26.0.1, numpy 2.4.6 and Pillow 13.0.0."""
import datetime
import decimal
import io
import json
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

here = pathlib.Path(__file__).parent


def types():
    """All types that become features, with nulls, nested, under odd names."""
    n = 7
    return pa.table({
        "i8": pa.array([i - 3 for i in range(n)], pa.int8()),
        "u64": pa.array([2**64 - 1 - i for i in range(n)], pa.uint64()),
        "i64": pa.array([None if i == 4 else i * 10**12 for i in range(n)], pa.int64()),
        "f16": pa.array(np.arange(n, dtype=np.float16) / 2, pa.float16()),
        "f32": pa.array([i / 4 for i in range(n)], pa.float32()),
        "f64": pa.array([i / 8 for i in range(n)], pa.float64()),
        "flag": pa.array([i % 2 == 0 for i in range(n)], pa.bool_()),
        "text": pa.array(["", "ä", "b\nc", "d", "e", "f", "日本"], pa.string()),
        "maybe": pa.array([None, "x"] * 3 + [None], pa.large_string()),
        "bytes": pa.array([bytes([i, 255]) for i in range(n)], pa.binary()),
        "kind": pa.array(["a", "b", "a", "b", "a", "b", "a"]).dictionary_encode(),
        "list": pa.array([list(range(i)) for i in range(n)], pa.list_(pa.int32())),
        "words": pa.array([None if i == 2 else ["w"] * (i % 3) for i in range(n)], pa.list_(pa.string())),
        "ragged": pa.array([[[1.0]] * i + [[]] for i in range(n)], pa.list_(pa.list_(pa.float32()))),
        "vector": pa.array([[i, i + 0.5] for i in range(n)], pa.list_(pa.float32(), 2)),
        "inner": pa.array([{"a": i, "b": None if i == 1 else str(i)} for i in range(n)],
                          pa.struct([("a", pa.int64()), ("b", pa.string())])),
        "items": pa.array([[{"k": j, "v": str(j)} for j in range(i % 3)] for i in range(n)],
                          pa.list_(pa.struct([("k", pa.int64()), ("v", pa.string())]))),
        "ünï codé": pa.array(range(n), pa.int64()),
    })


def picture(shade, form):
    file = io.BytesIO()
    Image.new("RGB", (4 + shade, 3), (shade, 100, 200)).save(file, form)
    return file.getvalue()


def hugging_face():
    """Pictures and classes, as `datasets` writes them."""
    features = {
        "image": {"_type": "Image"},
        "label": {"names": ["cat", "dog", "eel"], "_type": "ClassLabel"},
        "grid": {"shape": [2, 2], "dtype": "int32", "_type": "Array2D"},
        "captions": {"feature": {"dtype": "string", "_type": "Value"}, "_type": "Sequence"},
    }
    images = [{"bytes": picture(i, "PNG" if i % 2 else "JPEG"), "path": f"{i}.png"} for i in range(5)]
    table = pa.table({
        "image": pa.array(images, pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        "label": pa.array([0, 2, 1, 1, -1], pa.int64()),
        "grid": pa.array([[[i, 1], [2, 3]] for i in range(5)], pa.list_(pa.list_(pa.int32()))),
        "captions": pa.array([["a"], [], ["b", "c"], ["d"], ["e"]], pa.list_(pa.string())),
    })
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def nulls():
    """What no feature has a place for: lists and structs that are missing, lists that lack a value."""
    inner = pa.struct([("a", pa.int64()), ("tags", pa.list_(pa.string()))])
    return pa.table({
        "id": pa.array(range(4), pa.int64()),
        "tags": pa.array([["a"], None, [], ["b", "c"]], pa.list_(pa.string())),
        "gaps": pa.array([[1, None], [], None, [2]], pa.list_(pa.int64())),
        "inner": pa.array([{"a": 1, "tags": ["x"]}, {"a": None, "tags": []}, None, {"a": 4, "tags": None}], inner),
    })


def foreign():
    """Types that need a cast."""
    return pa.table({
        "price": pa.array([decimal.Decimal("1.50"), decimal.Decimal("-2.25")], pa.decimal128(10, 2)),
        "at": pa.array([datetime.datetime(2024, 1, 2), datetime.datetime(1969, 12, 31)], pa.timestamp("us")),
        "day": pa.array([datetime.date(1970, 1, 3), None], pa.date32()),
    })


pq.write_table(types(), here / "types.parquet", row_group_size=3, compression="zstd")
pq.write_table(types(), here / "types_snappy.parquet", row_group_size=100, compression="snappy", use_dictionary=False, data_page_version="2.0")
pq.write_table(hugging_face(), here / "pictures.parquet")
pq.write_table(nulls(), here / "nulls.parquet")
pq.write_table(foreign(), here / "foreign.parquet")
pq.write_table(types().slice(0, 0), here / "empty.parquet")

rows = 5
arrays = {
    "x": np.arange(rows * 6, dtype="<f4").reshape(rows, 2, 3),
    "fortran": np.asfortranarray(np.arange(rows * 6, dtype="<i4").reshape(rows, 2, 3)),
    "big": np.arange(rows, dtype=">u2"),
    "label": np.array([0, 1, 0, 1, 1]),
    "name": np.array(["", "ä", "日本", "d", "ee"]),
    "code": np.array([b"ab", b"c", b"", b"d", b"\xff"]),
    "flag": np.array([True, False, True, True, False]),
    "half": np.linspace(0, 1, rows).astype("f2"),
}
np.savez(here / "arrays.npz", **arrays)
np.savez_compressed(here / "packed.npz", **arrays)
np.save(here / "one.npy", np.arange(rows * 2, dtype="f8").reshape(rows, 2))
np.savez(here / "objects.npz", a=np.array([1, "x", None], dtype=object), allow_pickle=True)
np.savez(here / "uneven.npz", a=np.arange(3), b=np.arange(4))
