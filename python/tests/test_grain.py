"""Our data sources under the real Grain."""

import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest

grain = pytest.importorskip("grain.python")

from absl import flags

import prep
from prep.grain import DataSource


if not flags.FLAGS.is_parsed():
    # Grain's worker processes ask for the flags of the main program.
    flags.FLAGS.mark_as_parsed()


class Keep(grain.MapTransform):
    """Leaves what a batch can hold."""

    def map(self, element):
        return {"image": element["image"], "label": element["label"]}


def test_is_a_random_access_data_source():
    source = DataSource("cifar10", split="test")
    assert isinstance(source, grain.RandomAccessDataSource)
    assert len(source) == 60 == len(list(source))
    assert source[3]["id"] == source.__getitems__([3])[0]["id"] == prep.open("cifar10", split="test")[3]["id"]
    for key in ("x", 1.5):
        with pytest.raises((TypeError, AttributeError)):
            source[key]
    with pytest.raises(IndexError):
        source[60]


def test_files_in_place_give_what_a_build_gives(tmp_path):
    """The shards of a build, registered where they lie: Grain reads them by the other name in the same order."""
    built = prep.open("cifar10")
    recipe = tmp_path / "there.toml"
    recipe.write_text(f'format = 1\nname = "there"\n[[sources]]\npath = "{built.path}"\n[reader]\nkind = "tfds"\n')
    catalog = tmp_path / "catalog"
    command = [sys.executable, "-m", "prep", "register", str(recipe), "--in-place", "-q", "--catalog", str(catalog)]
    subprocess.run(command, check=True)
    ours = prep.open("there", catalog=catalog)
    assert (ours.fingerprint, len(ours)) == (built.fingerprint, len(built))
    sources = DataSource("there", catalog=catalog), DataSource("cifar10")
    shuffled = [list(grain.MapDataset.source(source).shuffle(seed=3)) for source in sources]
    assert [element["id"] for element in shuffled[0]] == [element["id"] for element in shuffled[1]]
    np.testing.assert_array_equal(shuffled[0][7]["image"], shuffled[1][7]["image"])


@pytest.mark.parametrize("split", ["train", "test[10:25]"])
def test_elements_are_those_of_tfds_data_source(split):
    """TFDS reads the folder that we built, with its own decoders."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tfds = pytest.importorskip("tensorflow_datasets")
        builder = tfds.builder_from_directory(prep.open("cifar10").path)
        theirs = builder.as_data_source(split=split)
        ours = DataSource("cifar10", split=split)
        assert len(ours) == len(theirs) > 0
        wanted = theirs.__getitems__(list(range(len(theirs))))
    for found, example in zip(ours, wanted, strict=True):
        assert list(found) == sorted(example)
        assert found["id"] == example["id"] and type(found["id"]) is bytes
        assert found["label"] == example["label"]
        assert found["image"].dtype == example["image"].dtype
        np.testing.assert_array_equal(found["image"], example["image"])


def test_records_are_the_stored_ones():
    source = DataSource("cifar10", split="test", decode=False)
    files = prep.ArrayRecordDataSource(f"{prep.open('cifar10').path}/cifar10-test.array_record-*")
    assert source.__getitems__(range(60)) == list(files) == [source[index] for index in range(60)]


def test_pickles_small_and_pinned_and_prints_stably():
    source = DataSource("cifar10", split="test")
    text = pickle.dumps(source)
    assert len(text) < 400 and b"3.0.2" in text
    again = pickle.loads(text)
    assert repr(again) == repr(source) == repr(DataSource("cifar10:3.0.2", split="test"))
    assert again[5]["id"] == source[5]["id"]


@pytest.mark.parametrize("seed", [0, 42])
def test_map_dataset_gives_the_batches_of_our_loader_in_grains_order(seed):
    dataset = grain.MapDataset.source(DataSource("cifar10")).shuffle(seed=seed).map(Keep()).batch(20, drop_remainder=True)
    ours = prep.load("cifar10", batch_size=20, seed=seed, order="grain", num_epochs=1, drop_remainder=True)
    assert len(dataset) == len(ours)
    for theirs, mine in zip(dataset, ours, strict=True):
        np.testing.assert_array_equal(theirs["image"], mine["image"])
        np.testing.assert_array_equal(theirs["label"], mine["label"])


def test_iter_dataset_with_its_own_threads():
    dataset = grain.MapDataset.source(DataSource("cifar10", split="test")).shuffle(seed=1).map(Keep()).to_iter_dataset()
    assert len(list(dataset.batch(7))) == 9


@pytest.mark.parametrize("worker_count", [0, 2])
def test_data_loader_runs_in_this_and_in_worker_processes(worker_count):
    source = DataSource("cifar10", split="test")
    sampler = grain.IndexSampler(len(source), shard_options=grain.NoSharding(), shuffle=True, num_epochs=1, seed=3)
    loader = grain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[Keep(), grain.Batch(10, drop_remainder=True)],
        worker_count=worker_count,
    )
    labels = [label for batch in loader for label in batch["label"].tolist()]
    assert sorted(labels) == sorted(int(element["label"]) for element in source)


@pytest.mark.parametrize("worker_count", [0, 2])
def test_array_records_under_a_data_loader(worker_count):
    source = prep.ArrayRecordDataSource(f"{prep.open('cifar10').path}/cifar10-test.array_record-00000-of-00001")
    sampler = grain.IndexSampler(len(source), shard_options=grain.NoSharding(), shuffle=False, num_epochs=1)
    loader = grain.DataLoader(data_source=source, sampler=sampler, worker_count=worker_count)
    iterator = iter(loader)
    first = [next(iterator) for _ in range(20)]
    state = iterator.get_state()
    rest = list(iterator)
    assert first + rest == list(source)
    again = iter(loader)
    again.set_state(state)
    assert list(again) == rest
