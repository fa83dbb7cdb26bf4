"""Batches on the devices of JAX, and where a stream stands beside the model: `prep.jax` and `prep.orbax`."""

import contextlib
import gc
import itertools
import json
import os
import pathlib
import socket
import subprocess
import sys

import conftest
import numpy as np
import pytest

import prep
import prep.grain
from prep import errors

jax = pytest.importorskip("jax")
ocp = pytest.importorskip("orbax.checkpoint")

import prep.jax
import prep.orbax

COLUMNS = ["image", "label"]


def load(**options):
    return prep.load("cifar10", **{"columns": COLUMNS, "batch_size": 16, "seed": 3, "drop_remainder": True} | options)


def grain_loader(**options):
    source = prep.grain.DataSource("cifar10", split="test")
    sampler = prep.grain.IndexSampler(len(source), shuffle=True, seed=2, num_epochs=2)
    return prep.grain.DataLoader(data_source=source, sampler=sampler, operations=[Keep(), prep.grain.Batch(8)], **options)


class Keep(prep.grain.MapTransform):
    def map(self, element):
        return {"image": element["image"], "label": element["label"]}


def add(element, rng):
    return {**element, "noise": rng.random()}


def pipeline(**options):
    return prep.MapDataset.load("cifar10", columns=COLUMNS, split="test").shuffle(3).random_map(add, seed=1).batch(8).repeat(2).options(**options)


def labels(batches):
    return [np.asarray(batch["label"]).tolist() for batch in batches]


def test_importing_imports_no_jax(run):
    run("import sys, prep.jax\nassert 'jax' not in sys.modules")


@pytest.mark.parametrize("size", [1, 2, 5])
def test_batches_are_those_of_the_loader_on_the_device(size):
    for found, wanted in zip(prep.jax.prefetch_to_device(load(num_epochs=2), size), load(num_epochs=2), strict=True):
        assert all(isinstance(array, jax.Array) for array in found.values())
        for name in COLUMNS:
            np.testing.assert_array_equal(found[name], wanted[name])


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("make", [lambda: load(num_epochs=1, split="test"), grain_loader, lambda: grain_loader(worker_count=2), pipeline])
def test_the_state_is_that_after_the_batch_handed_out(make, size):
    """Whatever was read ahead: restored at each step, the rest is the same, in a new iterator and in the old one."""

    def stream():
        return prep.jax.prefetch_to_device(make(), size, check_shapes=False)

    wanted = labels(stream())
    for step in range(0, len(wanted) + 1, 1 if size == 2 else 4):
        with stream() as first, stream() as second:
            assert labels(itertools.islice(first, step)) == wanted[:step]
            state = first.state()
            assert labels(itertools.islice(first, 2)) == wanted[step : step + 2]
            for going in (first, second):
                going.restore(state)
                assert going.state() == state
                assert labels(going) == wanted[step:]


def test_arrays_on_the_device_keep_their_values_while_the_loader_goes_on():
    """Devices in this memory may share the loader's buffers, which therefore must not come back to its pool."""
    kept = list(itertools.islice(prep.jax.prefetch_to_device(load(batch_size=4), 2), 60))
    gc.collect()
    for found, wanted in zip(kept, load(batch_size=4)):
        np.testing.assert_array_equal(found["image"], wanted["image"])


def test_a_batch_of_another_shape_is_an_error_after_those_before_it():
    stream = prep.jax.prefetch_to_device(load(drop_remainder=False, split="test", num_epochs=1), 3)
    assert len(labels(itertools.islice(stream, 3))) == 3
    with pytest.raises(errors.InvalidError, match=r"is (uint8|int64)\[12.*\] in a batch and was (uint8|int64)\[16.*drop_remainder=True"):
        next(stream)
    free = prep.jax.prefetch_to_device(load(drop_remainder=False, split="test", num_epochs=1), check_shapes=False)
    assert [len(rows) for rows in labels(free)] == [16, 16, 16, 12]


def test_what_no_device_holds_is_named():
    with pytest.raises(errors.InvalidError, match="`id` is text or bytes, which no device holds: leave it out"):
        next(prep.jax.prefetch_to_device(load(columns=None)))
    nested = [{"a": {"b": np.ma.masked_array([1, 2], [True, False])}}]
    with pytest.raises(errors.InvalidError, match="`a/b` is a masked array"):
        next(prep.jax.prefetch_to_device(nested))


def test_an_error_of_the_stream_comes_after_the_batches_before_it():
    def broken():
        yield from ({"x": np.full(2, number)} for number in range(3))
        raise ZeroDivisionError("mine")

    stream = prep.jax.prefetch_to_device(broken(), 8)
    assert [int(next(stream)["x"][0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError, match="mine"):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)
    with pytest.raises(errors.InvalidError, match="a generator has no state"):
        stream.state()
    with pytest.raises(errors.InvalidError, match="`size` is 0"):
        prep.jax.prefetch_to_device([], 0)


def test_closing_closes_the_loader():
    loader = load()
    with prep.jax.prefetch_to_device(loader) as stream:
        next(stream)
        state = stream.state()
    assert stream.state() == state
    for closed in (stream, loader):
        with pytest.raises(errors.ClosedError):
            next(closed)


def test_the_block_of_the_readme_runs(tmp_path, monkeypatch):
    """Twice: the second time it goes on."""
    (code,) = [block for block in conftest.blocks_of_the_readme() if "import prep.jax" in block]
    code = "import prep\n" + code
    monkeypatch.chdir(tmp_path)
    for steps in (100, 200):
        names = {}
        exec(code.replace("manager.save(step,", f"manager.save({steps},"), names)
        # Four batches an epoch; the remainder of the last one is not passed yet.
        assert names["batches"].state()["sample_position"] == (steps // 4 - 1) * 300 + 256


# Many devices: a process of its own, since JAX counts them once.

DEVICES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, numpy as np, prep, prep.jax
from jax.sharding import NamedSharding, PartitionSpec as P

def load(**options):
    return prep.load("cifar10", columns=["image", "label"], batch_size=16, seed=1, drop_remainder=True, num_epochs=1, **options)

mesh = jax.make_mesh((4, 2), ("data", "model"))
for spec in (P("data"), P(("data", "model")), P(None), P("model"), P("data", None)):
    sharding = NamedSharding(mesh, spec)
    assert prep.jax.process_shard(sharding) == {"shard_index": 0, "shard_count": 1}, spec
    if spec == P("data", None):
        batch = prep.jax.make_global_batch({"image": next(load())["image"]}, sharding)
        assert batch["image"].sharding.is_equivalent_to(sharding, 4)
        continue
    for found, wanted in zip(prep.jax.prefetch_to_device(load(), sharding=sharding), load(), strict=True):
        for name, array in found.items():
            assert array.sharding.is_equivalent_to(sharding, array.ndim) and len(array.addressable_shards) == 8
            np.testing.assert_array_equal(array, wanted[name])
try:
    prep.jax.make_global_batch({"a": {"x": np.zeros(6)}}, NamedSharding(mesh, P("data")))
except prep.errors.InvalidError as error:
    assert "`a/x` of shape (6,) does not fit" in str(error), error
else:
    raise SystemExit("6 rows on 4 devices")
"""


def test_batches_are_laid_over_a_mesh(run):
    done = run(DEVICES, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# Orbax.


def streams():
    return {
        "prep.load": load,
        "prep.grain": lambda: iter(grain_loader()),
        "prep.grain with workers": lambda: iter(grain_loader(worker_count=2)),
        "a pipeline": lambda: iter(pipeline()),
        "a pipeline with workers": lambda: iter(pipeline(workers=1)),
        "a stream": lambda: iter(pipeline().to_iter_dataset(streams=4)),
        "on the device": lambda: prep.jax.prefetch_to_device(load(), 3),
    }


@pytest.mark.parametrize("kind", streams())
def test_a_manager_saves_an_iterator_beside_the_model(kind, tmp_path):
    make = streams()[kind]
    iterator = make()
    model = {"weights": np.arange(4.0)}
    states, wanted = [], []
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        for step in range(3):
            wanted += labels([next(iterator)])
            args = ocp.args.Composite(model=ocp.args.StandardSave(model), data=prep.orbax.SaveArgs(iterator))
            assert manager.save(step, args=args)
            states.append(manager.directory / str(step) / "data" / "process_0-of-1.json")
        manager.wait_until_finished()
        wanted += labels(itertools.islice(iterator, 2))
        for step, file in enumerate(states):
            assert len(file.read_bytes()) < 2000 and isinstance(json.loads(file.read_text()), dict)
            fresh = make()
            args = ocp.args.Composite(model=ocp.args.StandardRestore(model), data=prep.orbax.RestoreArgs(fresh))
            restored = manager.restore(step, args=args)
            assert restored["data"] is fresh
            assert labels(itertools.islice(fresh, 2)) == wanted[step + 1 : step + 3]
            fresh.close()
    iterator.close()


def test_another_dataset_is_refused(tmp_path):
    handler = prep.orbax.CheckpointHandler()
    handler.save(tmp_path, load())
    with pytest.raises(errors.StateError, match="train.*test|test.*train"):
        handler.restore(tmp_path, load(split="test"))
    with pytest.raises(errors.StateError):
        handler.restore(tmp_path, load(seed=4))
    with pytest.raises(errors.StateError, match="not the state of a loader"):
        handler.restore(tmp_path, iter(grain_loader()))
    with pytest.raises(errors.InvalidError, match="a list has no state"):
        handler.save(tmp_path, [])
    (tmp_path / "process_0-of-1.json").write_text("{")
    with pytest.raises(errors.StateError, match="process_0-of-1.json: the state is not JSON"):
        handler.restore(tmp_path, load())
    with pytest.raises(errors.NotFoundError, match="holds no state of an iterator, wanted `process_0-of-1.json`"):
        handler.restore(tmp_path / "elsewhere", load())


def test_states_of_other_numbers_of_processes_go_on_where_they_agree(tmp_path):
    loader = load()
    next(loader)
    same, later = json.dumps(loader.state()), json.dumps({**loader.state(), "sample_position": 32})
    files = [tmp_path / f"process_{index}-of-2.json" for index in range(2)]
    handler = prep.orbax.CheckpointHandler()
    files[0].write_text(same)
    with pytest.raises(errors.StateError, match="`process_1-of-2.json` is missing"):
        handler.restore(tmp_path, load())
    files[1].write_text(later)
    with pytest.raises(errors.StateError, match="2 processes whose states differ"):
        handler.restore(tmp_path, load())
    files[1].write_text(same)
    assert labels(itertools.islice(handler.restore(tmp_path, load()), 2)) == labels(itertools.islice(loader, 2))


@pytest.mark.parametrize("on_device", [False, True])
def test_a_pipeline_of_streams_goes_on_from_the_states_of_all_hosts(on_device, tmp_path):
    dataset = prep.MapDataset.range(96).shuffle(1).to_iter_dataset(streams=4).map(lambda number: {"label": np.array([number])}, name="label")
    handler = prep.orbax.CheckpointHandler()

    def stream(dataset):
        return prep.jax.prefetch_to_device(dataset) if on_device else iter(dataset)

    wanted = labels(dataset)
    for host in range(2):
        iterator = stream(dataset.shard(host, 2))
        # Hosts take the streams in turn.
        assert labels(itertools.islice(iterator, 20)) == wanted[host:40:2]
        handler.save(tmp_path, iterator)
        (tmp_path / "process_0-of-1.json").rename(tmp_path / f"process_{host}-of-2.json.new")
    for host in range(2):
        (tmp_path / f"process_{host}-of-2.json.new").rename(tmp_path / f"process_{host}-of-2.json")
    assert labels(handler.restore(tmp_path, stream(dataset))) == wanted[40:]


def test_checkpoints_of_grains_handler_go_on_here_and_the_other_way_round(tmp_path):
    theirs = pytest.importorskip("grain.python")

    def make(package):
        sampler = package.IndexSampler(50, package.NoSharding(), shuffle=True, seed=5, num_epochs=1)
        return iter(package.DataLoader(data_source=list(range(50)), sampler=sampler, operations=[package.Batch(4)]))

    their, ours = make(theirs), make(prep.grain)
    for iterator in (their, ours):
        next(iterator)
    theirs.PyGrainCheckpointHandler().save(tmp_path, their)
    for name in ("theirs", "ours"):
        (tmp_path / name).mkdir()
    theirs.PyGrainCheckpointHandler().save(tmp_path / "theirs", their)
    prep.orbax.CheckpointHandler().save(tmp_path / "ours", ours)
    rest = [batch.tolist() for batch in ours]
    for folder in ("theirs", "ours"):
        for handler, iterator in ((prep.orbax.CheckpointHandler(), make(prep.grain)), (theirs.PyGrainCheckpointHandler(), make(theirs))):
            assert [batch.tolist() for batch in handler.restore(tmp_path / folder, iterator)] == rest


def test_the_newer_interface_of_orbax(tmp_path):
    v1 = pytest.importorskip("orbax.checkpoint.experimental.v1")
    iterator = load()
    next(iterator)
    v1.save_checkpointables(tmp_path / "saved", {"model": {"weights": np.arange(4.0)}, "data": prep.orbax.Checkpointable(iterator)})
    fresh = prep.orbax.Checkpointable(load())
    v1.load_checkpointables(tmp_path / "saved", {"data": fresh})
    assert labels(itertools.islice(fresh.iterator, 2)) == labels(itertools.islice(iterator, 2))


# Two hosts.

HOST = """
import json, sys
import jax
index, count, port, folder, steps = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
if count > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
import jax.numpy as jnp, numpy as np, orbax.checkpoint as ocp
import prep, prep.jax, prep.orbax
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((jax.device_count(),), ("data",))
sharding = NamedSharding(mesh, P("data"))
share = prep.jax.process_shard(sharding)
assert share == {"shard_index": index, "shard_count": count} == prep.jax.process_shard()
options = prep.grain.ShardByJaxProcess(drop_remainder=True)
assert (options.shard_index, options.shard_count) == (index, count)
assert prep.jax.process_shard(NamedSharding(mesh, P(None))) == {"shard_index": 0, "shard_count": 1}, "all have the same rows"

# As many rows in all, however many hosts there are.
loader = prep.load("cifar10", columns=["id", "image", "label"], batch_size=20 // count, seed=5, drop_remainder=True, num_epochs=1, **share)

class Numbers:
    # The rows' names as numbers, so that a device holds them; and on this host, for the test.
    def __init__(self): self.seen = []
    def __iter__(self): return self
    def __next__(self):
        batch = next(loader)
        self.seen.append([name.decode() for name in batch["id"]])
        return {"image": batch["image"], "label": batch["label"]}
    def state(self): return loader.state()
    def restore(self, state): loader.restore(state)

numbers = Numbers()
stream = prep.jax.prefetch_to_device(numbers, 2, sharding)

@jax.jit
def train_step(weights, batch):
    def loss(weights):
        logits = batch["image"].reshape(batch["image"].shape[0], -1) / 255.0 @ weights
        return -jnp.mean(jnp.sum(jax.nn.one_hot(batch["label"], 10) * jax.nn.log_softmax(logits), 1))
    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.01 * gradient, value

weights = jax.device_put(np.zeros((3072, 10), np.float32), NamedSharding(mesh, P()))
with ocp.CheckpointManager(folder) as manager:
    start = 0
    if manager.latest_step() is not None:
        start = manager.latest_step()
        args = ocp.args.Composite(model=ocp.args.StandardRestore({"weights": weights}), data=prep.orbax.RestoreArgs(stream))
        weights = manager.restore(start, args=args)["model"]["weights"]
    losses = []
    for step in range(start, steps):
        batch = next(stream)
        assert batch["label"].shape == (20,)
        weights, loss = train_step(weights, batch)
        losses.append(float(loss))
        if step + 1 == 6:
            args = ocp.args.Composite(model=ocp.args.StandardSave({"weights": weights}), data=prep.orbax.SaveArgs(stream))
            manager.save(step + 1, args=args)
            manager.wait_until_finished()
# What was read ahead was not trained on.
print("RESULT", json.dumps({"losses": losses, "seen": numbers.seen[: steps - start]}))
"""


def train(program, folder, count, steps):
    """Runs `count` hosts; what each printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    with contextlib.ExitStack() as stack:
        hosts = [
            stack.enter_context(
                conftest.started(
                    sys.executable, program, index, count, port, folder, steps, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
                )
            )
            for index in range(count)
        ]
        outputs = [host.communicate(timeout=120)[0] for host in hosts]
    for host, output in zip(hosts, outputs):
        assert host.returncode == 0, output
    return [json.loads(output.split("RESULT ")[1].splitlines()[0]) for output in outputs]


def test_two_hosts_train_on_disjoint_data_and_one_goes_on_from_both(tmp_path):
    """A real `jax.distributed` run; an undisturbed one on one host is what all of it is compared with."""
    program = tmp_path / "host.py"
    program.write_text(HOST)
    (alone,) = train(program, tmp_path / "alone", 1, 12)
    first, second = train(program, tmp_path / "both", 2, 6)
    assert first["losses"] == second["losses"]
    rows = [set(itertools.chain(*host["seen"])) for host in (first, second)]
    assert len(rows[0]) == len(rows[1]) == 60 and not rows[0] & rows[1]
    for step in range(6):
        assert first["seen"][step] + second["seen"][step] == alone["seen"][step]
    np.testing.assert_allclose(first["losses"], alone["losses"][:6], rtol=1e-5)
    saved = [pathlib.Path(tmp_path, "both", "6", "data", f"process_{index}-of-2.json") for index in range(2)]
    assert saved[0].read_text() == saved[1].read_text()
    (resumed,) = train(program, tmp_path / "both", 1, 12)
    assert resumed["seen"] == alone["seen"][6:]
    np.testing.assert_allclose(resumed["losses"], alone["losses"][6:], rtol=1e-5)
    assert not (rows[0] | rows[1]) & set(itertools.chain(*resumed["seen"])), "within the epoch nothing comes twice"
