"""Grain and JAX consume what we build; our `grain` order is Grain's."""
import grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python.array_record_data_source import ArrayRecordDataSource
from conftest import DATASETS, pixels_digest


def shards(prep, name, split):
    return [str(path) for path in sorted(prep.folder(name).glob(f"{name}-{split}.array_record-*"))]


@pytest.mark.parametrize("name", DATASETS)
def test_map_dataset_iterates_over_our_shards(prep, name):
    source = ArrayRecordDataSource(shards(prep, name, "train"))
    wanted = [record for shard in shards(prep, name, "train") for record in prep.records(shard)]
    assert len(source) == len(wanted)
    assert list(grain.MapDataset.source(source)) == wanted
    shuffled = list(grain.MapDataset.source(source).shuffle(seed=3).to_iter_dataset())
    assert shuffled != wanted and sorted(shuffled) == sorted(wanted)


def test_map_dataset_iterates_over_many_shards(sharded, golden):
    files = shards(sharded, "cifar10", "train")
    assert len(files) == 7
    wanted = [record for shard in files for record in sharded.records(shard)]
    assert list(grain.MapDataset.source(ArrayRecordDataSource(files))) == wanted


def test_map_dataset_over_a_tfds_source_decodes(prep, golden):
    source = tfds.data_source("cifar10", split="test", data_dir=prep.folder("cifar10").parent.parent)
    found = [pixels_digest(example["image"]) for example in grain.MapDataset.source(source)]
    assert found == [want["sha256"] for want in golden["cifar10"]["splits"]["test"]["positions"]]


@pytest.mark.parametrize("worker_count", [0, 2])
def test_data_loader_sees_every_record_once(sharded, worker_count):
    source = ArrayRecordDataSource(shards(sharded, "cifar10", "train"))
    sampler = grain.samplers.IndexSampler(
        len(source), shuffle=True, seed=7, num_epochs=1, shard_options=grain.sharding.NoSharding()
    )
    found = list(grain.DataLoader(data_source=source, sampler=sampler, worker_count=worker_count))
    wanted = [record for shard in shards(sharded, "cifar10", "train") for record in sharded.records(shard)]
    assert sorted(found) == sorted(wanted)


def test_jax_consumes_a_batch(prep):
    from_prep = prep.examples("mnist", "train")[:32]
    source = tfds.data_source("mnist", split="train", data_dir=prep.folder("mnist").parent.parent)
    from_tfds = [source[i] for i in range(32)]

    @jax.jit
    def statistics(images, labels):
        pixels = images.astype(jnp.float32) / 255
        return pixels.mean(axis=(1, 2, 3)), jax.nn.one_hot(labels, 10).sum(axis=0)

    ours, theirs = (
        statistics(np.stack([e["image"] for e in examples]), np.array([int(e["label"]) for e in examples], np.int32))
        for examples in (from_prep, from_tfds)
    )
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])
    assert float(ours[1].sum()) == 32


@pytest.mark.parametrize("name,split", [("cifar10", "train"), ("mnist", "test")])
@pytest.mark.parametrize("seed", [0, 1, 42, 2**32 - 1])
def test_grain_order_is_that_of_grain(prep, golden, name, split, seed):
    n = len(golden[name]["splits"][split]["positions"])
    wanted = list(grain.MapDataset.range(n).shuffle(seed=seed).repeat(3))
    found = prep.indices(name, "--split", split, "--order", "grain", "--seed", str(seed), "--epochs", "3", "--batch", "1")
    assert [i for batch in found for i in batch] == wanted


def test_prep_order_is_a_permutation_that_changes_by_epoch(prep, golden):
    n = len(golden["cifar10"]["splits"]["train"]["positions"])
    found = [i for batch in prep.indices("cifar10", "--seed", "5", "--epochs", "2", "--batch", "50") for i in batch]
    first, second = found[:n], found[n:]
    assert sorted(first) == sorted(second) == list(range(n))
    assert first != second and first != list(range(n))
