"""The programs in `python/examples`, with few steps on few pictures; and those for Grain's DataLoader under the real Grain as well."""

import importlib.util
import itertools
import json
import pathlib
import random
import sys

import conftest
import numpy as np
import pytest

import prep

for name in ("jax", "flax", "optax", "orbax.checkpoint", "chex"):
    pytest.importorskip(name)

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(scope="session")
def fashion(tmp_path_factory):
    """A catalog of its own with 120 and 40 real pictures of Fashion-MNIST."""
    catalog = tmp_path_factory.mktemp("fashion") / "catalog"
    prep.build("fashion_mnist", from_=conftest.GOLDEN / "fashion_mnist", checksum=False, catalog=catalog)
    return catalog


@pytest.fixture
def program(fashion, monkeypatch):
    """Loads an example, as it is or for the real Grain."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("PREP_CATALOG", str(fashion))

    def load(name, package="prep.grain"):
        text = (EXAMPLES / f"{name}.py").read_text()
        if package != "prep.grain":
            assert text.count("import prep.grain as grain") == 1
            text = text.replace("import prep.grain as grain", f"import {package} as grain")
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(f"{name}_{package.replace('.', '_')}", None))
        # Worker processes find what is in it by this name.
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(text, str(EXAMPLES / f"{name}.py"), "exec"), module.__dict__)
        return module

    return load


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    for mine, their in zip(found, wanted):
        assert mine.keys() == their.keys()
        for key in their:
            np.testing.assert_array_equal(mine[key], their[key])
            assert mine[key].dtype == their[key].dtype


@pytest.fixture
def grain():
    flags = pytest.importorskip("absl.flags")
    if not flags.FLAGS.is_parsed():
        # Grain's worker processes ask for the flags of the main program.
        flags.FLAGS.mark_as_parsed()
    return pytest.importorskip("grain.python")


@pytest.mark.parametrize("worker_count", [0, 2, 8])
def test_the_training_programs_input_is_that_of_the_real_grain(worker_count, program, grain, workers_here):
    ours, theirs = program("train_grain"), program("train_grain", "grain.python")
    assert ours.grain is prep.grain and theirs.grain is grain
    for shard, rotate, epochs in [((0, 1), 0, None), ((1, 2), 30, 2), ((0, 2), 0, 2)]:
        options = {"batch_size": 8, "worker_count": worker_count, "threads": 2, "rotate": rotate, "num_epochs": epochs}
        loaders = [
            module.make_loader(module.open_source(), shard_options=module.grain.ShardOptions(*shard, drop_remainder=True), **options)
            for module in (ours, theirs)
        ]
        found, wanted = (list(itertools.islice(loader, 20)) for loader in loaders)
        assert_same(found, wanted)
        mine, their = map(iter, loaders)
        for iterator in (mine, their):
            assert_same(list(itertools.islice(iterator, 5)), wanted[:5])
        mine_again, their_again = map(iter, loaders)
        mine_again.set_state(their.get_state())
        their_again.set_state(mine.get_state())
        for iterator in (mine_again, their_again):
            assert_same(list(itertools.islice(iterator, 5)), wanted[5:10])
            if iterator is mine_again:
                iterator.close()
        mine.close()


@pytest.mark.parametrize(("name", "words"), [("train_grain", ["--workers", "2"]), ("train_native", []), ("train_native", ["--workers", "2"])])
def test_training_lowers_the_loss_and_goes_on_exactly(name, words, program, tmp_path, capsys):
    main = program(name).main
    words = ["--batch-size", "16", *words]
    whole = main([*words, "--steps", "60"])
    assert whole.traces == 1 and len(whole.losses) == 60
    assert np.mean(whole.losses[-10:]) < 0.5 * np.mean(whole.losses[:5])
    assert main([*words, "--steps", "10"]).losses == whole.losses[:10], "every run with one seed is the same"
    saving = [*words, "--checkpoints", str(tmp_path / "run"), "--save-every", "10"]
    # An epoch has 7 batches: 20 is in the middle of the third. What comes after the last checkpoint is done again.
    assert main([*saving, "--steps", "25"]).losses == whole.losses[:25]
    resumed = main([*saving, "--steps", "60"])
    assert "goes on after step 20" in capsys.readouterr().out
    assert resumed.losses == whole.losses[20:]


def test_a_run_under_the_real_grain_goes_on_here_with_the_same_losses(program, grain, tmp_path):
    """Grain's handler saves, ours restores."""
    ours, theirs = program("train_grain").main, program("train_grain", "grain.python").main
    words = ["--batch-size", "16", "--workers", "0"]
    whole = ours([*words, "--steps", "25"])
    saving = [*words, "--checkpoints", str(tmp_path / "run"), "--save-every", "10"]
    assert theirs([*saving, "--steps", "15"]).losses == whole.losses[:15]
    assert ours([*saving, "--steps", "25"]).losses == whole.losses[10:]


@pytest.mark.parametrize(("name", "words", "steps"), [("train_grain", ["--workers", "0", "--epochs", "1"], (8, 7)), ("train_native", ["--epochs", "2"], (16, 14))])
def test_a_batch_that_is_not_full_is_compiled_for(name, words, steps, program):
    module = program(name)
    words = ["--batch-size", "16", *words]
    kept, dropped = module.main([*words, "--keep-remainder"]), module.main(words)
    assert (kept.traces, dropped.traces) == (2, 1)
    assert (len(kept.losses), len(dropped.losses)) == steps


def test_chex_stops_a_second_compilation(program):
    program("train_grain")
    from classifier import Training

    batches = ({"image": np.zeros((rows, 28, 28, 1), np.float32), "label": np.zeros(rows, np.int32)} for rows in (16, 16, 8))
    with pytest.raises(AssertionError, match="traced > 1 times"):
        Training(max_traces=1).run(batches, 3)


def test_rotations_are_the_same_on_every_run_with_one_seed(program):
    pytest.importorskip("scipy")
    module = program("train_grain")
    source = module.open_source()

    def images(seed, worker_count):
        loader = module.make_loader(source, rotate=25, seed=seed, worker_count=worker_count, batch_size=10)
        return [batch["image"] for batch in itertools.islice(loader, 6)]

    first = images(1, 0)
    np.testing.assert_array_equal(first, images(1, 0))
    np.testing.assert_array_equal(images(1, 2), images(1, 2))
    assert (np.array(first) != images(2, 0)).any()


def test_worker_counts_are_timed_and_plotted(program, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "workers.png"
    assert program("train_grain").main(["--plot", str(plot), "--steps", "5", "--batch-size", "8", "--threads", "1"]) is None
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == ["0", "2", "4", "8"]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_shares_are_disjoint_here_and_under_grain(program, grain, capsys):
    ours, theirs = program("disjoint_shards"), program("disjoint_shards", "grain.python")
    for shards in ("2", "3"):
        ours.main(["--shards", shards])
        said = capsys.readouterr().out
        theirs.main(["--shards", shards])
        assert capsys.readouterr().out == said
    ours.main(["--dataset", "fashion_mnist"])
    said = capsys.readouterr().out
    assert "drop_remainder=True: 2 disjoint shares of 60, 60 records, 0 left out" in said


def test_the_quick_start(program, tmp_path, capsys):
    words = ["--from", str(conftest.GOLDEN / "fashion_mnist"), "--no-checksum", "--catalog", str(tmp_path / "catalog")]
    module = program("quickstart")
    module.main(words)
    assert "fashion_mnist:3.0.1 is built in " in capsys.readouterr().out
    module.main(words)
    said = capsys.readouterr().out
    assert "is up to date in " in said and "train: 120 examples" in said and "goes on with the same batch" in said


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A dataset of 200 texts in a catalog of its own."""
    draw = random.Random(1)
    words = ["".join(draw.choices("etaoin", k=draw.randint(1, 8))) for _ in range(50)]
    rows = [" ".join(draw.choices(words, k=draw.randint(1, 40))) for _ in range(200)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    monkeypatch.setenv("PREP_CATALOG", str(tmp_path / "catalog"))
    conftest.command("infer", tmp_path / "texts.jsonl", "-o", tmp_path / "texts.toml")
    conftest.command("register", tmp_path / "texts.toml", "-q")
    return rows


def test_grain_reads_our_shards_as_maxtext_does(program, texts, grain, capsys):
    pytest.importorskip("tensorflow_datasets")
    module = program("maxtext_input")
    module.main(["texts", "--length", "64", "--batch-size", "4", "--batches", "3"])
    assert capsys.readouterr().out.count("4 rows of 64 tokens") == 3
    options = {"length": 512, "batch_size": 2, "num_epochs": 1}
    seen = []
    for host in range(2):
        batches = [list(module.make_dataset("texts", host_index=host, host_count=2, their_source=theirs, **options)) for theirs in (False, True)]
        assert_same(*batches)
        for batch in batches[0]:
            for targets, inputs, segments in zip(batch["targets"], batch["inputs"], batch["segment_ids"]):
                for segment in range(1, segments.max() + 1):
                    tokens = targets[segments == segment]
                    assert tokens[-1] == 0 and inputs[segments == segment].tolist() == [0, *tokens[:-1]]
                    seen.append(bytes((tokens[:-1] - 1).tolist()).decode())
    # The last bins of a host may be no whole batch.
    assert len(seen) > 150 and not set(seen) - set(texts) and max(map(seen.count, seen)) <= max(map(texts.count, texts))
