"""Prep: datasets as indexed ArrayRecord shards, a catalog of them, and batches by name.

| to | call |
| --- | --- |
| stream shuffled batches of NumPy arrays | `prep.load("cifar10", batch_size=256, seed=42)` |
| read single examples and slices | `prep.open("cifar10", split="test")[7]` |
| shuffle, map, mix, pack, batch with functions of your own | `prep.MapDataset.load("cifar10").shuffle(42).map(f).batch(64)` |
| feed Grain | `prep.grain.DataSource("cifar10")` |
| read ArrayRecord files by index | `prep.ArrayRecordDataSource("train.array_record-*")` |
| feed JAX, PyTorch; save where a stream stands | `prep.jax.prefetch_to_device(..)`, `prep.torch.loader(..)`, `prep.orbax.SaveArgs(..)`: import those modules |
| build a dataset, see what there is | `prep.build("mnist")`, `prep.list()`, `prep.show("mnist")` |
| make one of your own files; convert record files | `prep.register("my_data.toml")`, `prep.convert("*.tfrecord", "shards")` |
| tag, remove, verify | `prep.catalog().tag("mnist", "best")` |
| write a dataset of your own | `prep.write("squares", examples)`, `@prep.builder("my_data")` |

Names are those of the command `prep`: `name`, `name/config`, `name:version`, `name@tag`. The catalog is `catalog=`, else `$PREP_CATALOG`,
else a folder under `$PREP_HOME`. Errors are `prep.PrepError` and its subclasses in `prep.errors`.

Importing this package starts no threads and imports no NumPy: the first stream or element does.
"""

from prep import errors, grain, transforms
from prep._api import build, catalog, convert, list, load, open, parse_example, register, show, write
from prep._array_record import ArrayRecordDataSource
from prep._catalog import Catalog
from prep._core import Dataset, Loader, __version__
from prep._pipeline import DatasetIterator, IterDataset, MapDataset
from prep._spec import ArraySpec, Batch, Element
from prep._progress import Stage
from prep._writing import Builder, builder
from prep.errors import PrepError

__all__ = [
    "ArrayRecordDataSource",
    "ArraySpec",
    "Batch",
    "Builder",
    "Catalog",
    "Dataset",
    "DatasetIterator",
    "Element",
    "IterDataset",
    "Loader",
    "MapDataset",
    "PrepError",
    "Stage",
    "__version__",
    "build",
    "builder",
    "catalog",
    "convert",
    "errors",
    "grain",
    "list",
    "load",
    "open",
    "parse_example",
    "register",
    "show",
    "transforms",
    "write",
]
