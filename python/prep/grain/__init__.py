"""Grain's `DataLoader` and what goes with it: a program changes `import grain.python as grain` into `import prep.grain as grain`.

It then sees the same batches: the same records in the same order for a seed, shards and a number of workers, and the same generators in
random transforms. A state that Grain saved goes on here, and the other way round. Grain itself is not imported here, and not needed.

The real Grain takes our sources too: `grain.MapDataset.source(prep.grain.DataSource("cifar10"))`.

| here | in Grain |
| --- | --- |
| `DataLoader`, `DataLoaderIterator`, `load` | there; one iterator also has `close()` and pickles |
| `IndexSampler`, `SequentialSampler`, `RecordMetadata`, `Record` | there |
| `MapTransform`, `RandomMapTransform`, `FilterTransform`, `FlatMapTransform`, `Batch` | those, also `transforms.Map` and so on |
| `MapOperation`, `RandomMapOperation`, `FilterOperation`, `BatchOperation` | Grain's older names for functions |
| `ShardOptions`, `NoSharding`, `ShardByJaxProcess` | there |
| `ReadOptions`, `MultiprocessingOptions` | there |
| `DataSource`, `ArrayRecordDataSource`, `RangeDataSource` | the last two |
| `PyGrainCheckpointHandler`, `PyGrainCheckpointSave`, `PyGrainCheckpointRestore` | there, and in `prep.orbax`; they need Orbax |

Importing this package imports no NumPy and no `multiprocessing`: the first iterator does.
"""

from typing import TYPE_CHECKING, Any

from prep._array_record import ArrayRecordDataSource
from prep.grain import samplers, sharding, sources, transforms
from prep.grain._loader import DataLoader, DataLoaderIterator, MultiprocessingOptions, ReadOptions, load
from prep.grain.samplers import IndexSampler, Record, RecordMetadata, Sampler, SequentialSampler
from prep.grain.sharding import NoSharding, ShardByJaxProcess, ShardOptions
from prep.grain.sources import DataSource, RandomAccessDataSource, RangeDataSource
from prep.grain.transforms import (
    Batch,
    FilterOperation,
    MapOperation,
    Operation,
    RandomMapOperation,
    Transformation,
    Transformations,
)
from prep.grain.transforms import Filter as FilterTransform
from prep.grain.transforms import FlatMap as FlatMapTransform
from prep.grain.transforms import Map as MapTransform
from prep.grain.transforms import MapWithIndex as MapWithIndexTransform
from prep.grain.transforms import RandomMap as RandomMapTransform

BatchOperation = Batch

if TYPE_CHECKING:
    import prep.orbax

    PyGrainCheckpointHandler = prep.orbax.CheckpointHandler
    PyGrainCheckpointRestore = prep.orbax.RestoreArgs
    PyGrainCheckpointSave = prep.orbax.SaveArgs

PyGrainDatasetIterator = DataLoaderIterator

_OF_ORBAX = {
    "PyGrainCheckpointHandler": "CheckpointHandler",
    "PyGrainCheckpointRestore": "RestoreArgs",
    "PyGrainCheckpointSave": "SaveArgs",
}


def __getattr__(name: str) -> Any:
    """Orbax is imported by the first use of what needs it."""
    if name in _OF_ORBAX:
        import prep.orbax

        return getattr(prep.orbax, _OF_ORBAX[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ArrayRecordDataSource",
    "Batch",
    "BatchOperation",
    "DataLoader",
    "DataLoaderIterator",
    "DataSource",
    "FilterOperation",
    "FilterTransform",
    "FlatMapTransform",
    "IndexSampler",
    "MapOperation",
    "MapTransform",
    "MapWithIndexTransform",
    "MultiprocessingOptions",
    "NoSharding",
    "Operation",
    "PyGrainDatasetIterator",
    "RandomAccessDataSource",
    "RandomMapOperation",
    "RandomMapTransform",
    "RangeDataSource",
    "ReadOptions",
    "Record",
    "RecordMetadata",
    "Sampler",
    "SequentialSampler",
    "ShardByJaxProcess",
    "ShardOptions",
    "Transformation",
    "Transformations",
    "load",
    "samplers",
    "sharding",
    "sources",
    "transforms",
]
