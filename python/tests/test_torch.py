"""Batches as tensors, ranks, worker processes and saved states: `prep.torch`. In `make test-all`, since PyTorch is gigabytes."""

import contextlib
import doctest
import functools
import gc
import importlib.util
import itertools
import pickle
import socket
import subprocess
import sys

import conftest
import numpy as np
import pytest

import prep
from prep import errors

torch = pytest.importorskip("torch")
stateful_dataloader = pytest.importorskip("torchdata.stateful_dataloader")

import prep.torch

# Of torchdata, which is older than this torch; and of torch, where processors are few.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated", "ignore:This DataLoader will create 3 worker processes")

OPTIONS = {"split": "train", "batch_size": 16, "seed": 3, "columns": ["id", "image", "label"]}


def names(batches):
    return [[name.decode() for name in batch["id"]] for batch in batches]


def flat(batches):
    return list(itertools.chain(*names(batches)))


def grain_stream(shard_index, shard_count):
    shard = prep.grain.ShardOptions(shard_index, shard_count)
    source = prep.grain.DataSource("cifar10", split="test")
    sampler = prep.grain.IndexSampler(len(source), shard, shuffle=True, seed=1, num_epochs=1)
    return prep.grain.DataLoader(data_source=source, sampler=sampler, operations=[prep.grain.Batch(8)])


def pipeline(shard_index, shard_count):
    return prep.MapDataset.load("cifar10", split="test").shuffle(1).batch(8).shard(shard_index, shard_count)


def test_the_examples_in_the_documentation_hold(monkeypatch):
    assert doctest.testmod(prep.torch).failed == 0


def test_the_block_of_the_readme_runs():
    (code,) = [block for block in conftest.blocks_of_the_readme() if "import prep.torch" in block]
    names = {}
    exec(code, names)
    assert names["batch"]["image"].shape == (256, 32, 32, 3) and "stream" in str(names["state"])


def test_tensors_are_the_loaders_own_memory_and_writable():
    dataset = prep.torch.IterableDataset("cifar10", num_epochs=1, **OPTIONS)
    kept = list(itertools.islice(dataset, 18))
    gc.collect()
    for batch, wanted in zip(kept, prep.load("cifar10", num_epochs=1, **OPTIONS)):
        assert (batch["image"].numpy() == wanted["image"]).all() and batch["label"].dtype == torch.int64
        batch["image"].zero_()
    array = next(prep.load("cifar10", **OPTIONS))["image"]
    tensor = prep.torch.to_tensors(array)
    assert tensor.data_ptr() == array.ctypes.data


def test_all_kinds_of_values_are_turned():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    read_only = np.arange(3)
    read_only.flags.writeable = False
    masked = np.ma.masked_array([1, 2], [True, False])
    found = prep.torch.to_tensors(
        {
            "nested": {"ragged": [np.zeros(2), np.zeros(3)]},
            "text": np.array([b"a", b"bc"], object),
            "half": np.array([1.5, -2], ml_dtypes.bfloat16),
            "read_only": read_only,
            "scalar": np.float32(2.5),
            "wide": np.array([2**63], np.uint64),
            "masked": masked,
            "none": None,
            "flag": np.array([True]),
        }
    )
    assert [tuple(part.shape) for part in found["nested"]["ragged"]] == [(2,), (3,)]
    assert found["text"] == [b"a", b"bc"] and found["none"] is None and found["masked"] is masked
    assert found["half"].dtype == torch.bfloat16 and found["half"].tolist() == [1.5, -2]
    found["read_only"][0] = 9
    assert read_only[0] == 0
    assert found["scalar"].shape == () and found["scalar"].item() == 2.5 and found["wide"].dtype == torch.uint64
    assert found["flag"].dtype == torch.bool


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_and_workers_read_an_epoch_once(num_workers, world_size):
    seen = []
    for rank in range(world_size):
        seen.append(flat(prep.torch.loader("cifar10", num_workers=num_workers, rank=rank, world_size=world_size, num_epochs=1, **OPTIONS)))
    assert len(set(itertools.chain(*seen))) == sum(map(len, seen)) == 300
    if world_size == 1 and num_workers == 0:
        assert seen[0] == flat([{"id": batch["id"]} for batch in prep.load("cifar10", num_epochs=1, **OPTIONS)])


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("source", ["cifar10", grain_stream, pipeline], ids=["name", "prep.grain", "pipeline"])
def test_a_stateful_loader_goes_on_at_each_step(source, num_workers):
    def make():
        return prep.torch.loader(source, num_workers=num_workers, **(dict(OPTIONS, num_epochs=1) if source == "cifar10" else {}))

    wanted = names(make())
    for step in (0, 1, 2, len(wanted) // 2, len(wanted) - 1):
        first = make()
        iterator = iter(first)
        assert names(itertools.islice(iterator, step)) == wanted[:step]
        state = pickle.loads(pickle.dumps(first.state_dict()))
        del iterator
        again = make()
        again.load_state_dict(state)
        assert names(again) == wanted[step:], step


def test_spawned_workers_read_the_same():
    options = dict(OPTIONS, num_epochs=1)
    forked = names(prep.torch.loader("cifar10", num_workers=2, **options))
    assert names(prep.torch.loader("cifar10", num_workers=2, multiprocessing_context="spawn", **options)) == forked


def test_each_epoch_has_an_order_and_a_state_of_its_own():
    loader = prep.torch.loader("cifar10", num_epochs=1, **OPTIONS)
    epochs = []
    for epoch in range(3):
        loader.dataset.set_epoch(epoch)
        epochs.append(names(loader))
    assert all(len(set(itertools.chain(*epoch))) == 300 for epoch in epochs) and epochs[0] != epochs[1] != epochs[2]
    assert list(itertools.chain(*epochs)) == names(itertools.islice(iter(prep.torch.IterableDataset("cifar10", **OPTIONS)), 57))
    loader.dataset.set_epoch(2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    again = prep.torch.loader("cifar10", num_epochs=1, **OPTIONS)
    again.load_state_dict(state)
    assert names(again) == epochs[2][1:]


def test_what_cannot_be_right_is_said():
    make = functools.partial(prep.torch.IterableDataset, "cifar10", **OPTIONS)
    for wrong, text in (
        (lambda: make(rank=1), "go together"),
        (lambda: make(rank=2, world_size=2), "`rank` is 2, wanted 0 to 1"),
        (lambda: make(shard_index=0), "`shard_index` comes from rank"),
        (lambda: prep.torch.IterableDataset(grain_stream, batch_size=3), "options go with a name"),
        (lambda: prep.torch.IterableDataset(grain_stream).set_epoch(1), "its own epochs"),
        (lambda: make().set_epoch(-1), "`epoch` is -1"),
        (lambda: prep.torch.Dataset("cifar10", columns=["picture"]), "no feature `picture` in cifar10.*which has id, image, label"),
    ):
        with pytest.raises(errors.InvalidError, match=text):
            wrong()
    state = iter(make(rank=0, world_size=2)).state_dict()
    with pytest.raises(errors.InvalidError, match="share 0 of 2, this is 0 of 1"):
        iter(make()).load_state_dict(state)
    other = prep.torch.IterableDataset("cifar10", **{**OPTIONS, "seed": 4})
    with pytest.raises(errors.StateError):
        iter(other).load_state_dict(iter(make()).state_dict())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_random_access_under_samplers_of_torch(num_workers):
    dataset = prep.torch.Dataset("cifar10", split="test")
    generator = torch.Generator().manual_seed(1)
    loader = torch.utils.data.DataLoader(dataset, batch_size=7, shuffle=True, generator=generator, num_workers=num_workers)
    seen = []
    for batch in loader:
        assert batch["image"].shape[1:] == (32, 32, 3)
        seen += [(name, int(label)) for name, label in zip(batch["id"], batch["label"])]
    assert sorted(seen) == sorted((element["id"], int(element["label"])) for element in prep.open("cifar10", split="test"))


def test_pinned_memory_is_asked_of_torch():
    loader = prep.torch.loader("cifar10", pin_memory=True, num_epochs=1, **OPTIONS)
    assert loader.pin_memory
    if torch.cuda.is_available():
        assert next(iter(loader))["image"].is_pinned()
    else:
        with pytest.warns(UserWarning, match="pin_memory"):
            assert len(flat(loader)) == 300


RANK = """
import sys, torch.distributed
import prep.torch

if __name__ == "__main__":
    rank, port, context = int(sys.argv[1]), sys.argv[2], sys.argv[3] or None
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    options = {"batch_size": 10, "seed": 1, "num_epochs": 1, "columns": ["id"]}
    loader = prep.torch.loader("cifar10", num_workers=0 if context is None else 2, multiprocessing_context=context, **options)
    seen = [name.decode() for batch in loader for name in batch["id"]]
    everyone = [None, None]
    torch.distributed.all_gather_object(everyone, seen)
    assert len(everyone[0]) == len(everyone[1]) == 150 and len({*everyone[0], *everyone[1]}) == 300
    torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize("context", ["", "fork", "spawn"])
def test_ranks_of_torch_distributed_read_disjoint_shares(context, tmp_path):
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with contextlib.ExitStack() as stack:
        ranks = [
            stack.enter_context(conftest.started(sys.executable, program, rank, port, context, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            for rank in range(2)
        ]
        for rank in ranks:
            output, _ = rank.communicate(timeout=120)
            assert rank.returncode == 0, output


@pytest.fixture
def fashion(tmp_path, monkeypatch):
    """A catalog of its own with 120 pictures of Fashion-MNIST."""
    monkeypatch.setenv("PREP_CATALOG", str(tmp_path / "catalog"))
    prep.build("fashion_mnist", from_=conftest.GOLDEN / "fashion_mnist", checksum=False)


def test_the_training_program_goes_on_exactly(fashion, tmp_path, capsys):
    path = conftest.ROOT / "python" / "examples" / "train_torch.py"
    module = importlib.util.module_from_spec(specification := importlib.util.spec_from_file_location("train_torch", path))
    specification.loader.exec_module(module)
    words = ["--batch-size", "16", "--save-every", "10"]
    whole = module.main([*words, "--steps", "40"])
    assert np.mean(whole[-10:]) < 0.5 * np.mean(whole[:5])
    saving = [*words, "--checkpoint", str(tmp_path / "model.pt")]
    assert module.main([*saving, "--steps", "25"]) == whole[:25]
    assert module.main([*saving, "--steps", "40"]) == whole[20:]
    assert "goes on after step 20" in capsys.readouterr().out


def test_the_training_program_runs_under_torchrun(fashion):
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", conftest.ROOT / "python" / "examples" / "train_torch.py"]
    with conftest.started(
        sys.executable, *words, "--steps", "100", "--batch-size", "8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count("step 100: loss") == 2
