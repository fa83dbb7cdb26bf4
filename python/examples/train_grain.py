"""Trains a classifier on Fashion-MNIST with Grain's `DataLoader`: with `import grain.python as grain` this is a program for Grain itself.

    prep build fashion_mnist
    python train_grain.py --checkpoints fashion --save-every 500
    python train_grain.py --plot workers.png

Needs jax, flax, optax, orbax-checkpoint and chex; the plot matplotlib, rotation scipy.
"""

import argparse
import time

import numpy as np

import prep
import prep.grain as grain  # Grain's own: import grain.python as grain


class Pictures(grain.RandomAccessDataSource):
    """Images and labels in memory, one record for each index."""

    def __init__(self, images, labels):
        self._images, self._labels = images, labels

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, index):
        return {"image": self._images[index], "label": self._labels[index]}

    def __repr__(self):
        # A state says which source it belongs to.
        return f"Pictures({len(self)})"


class Normalise(grain.MapTransform):
    """uint8 to float32, 0 to 1."""

    def map(self, element):
        return {**element, "image": element["image"].astype(np.float32) / 255}


class Flip(grain.RandomMapTransform):
    """Mirrors every second picture, by the generator of its place in the stream."""

    def random_map(self, element, rng):
        return {**element, "image": element["image"][:, ::-1]} if rng.random() < 0.5 else element


class Rotate(grain.RandomMapTransform):
    """By up to `degrees` either way, by the generator of its place in the stream: the same on every run with one seed."""

    def __init__(self, degrees):
        self._degrees = degrees

    def random_map(self, element, rng):
        from scipy import ndimage

        angle = rng.uniform(-self._degrees, self._degrees)
        return {**element, "image": ndimage.rotate(element["image"], angle, reshape=False, order=1)}


def open_source(split="train", catalog=None):
    everything = prep.open("fashion_mnist", split=split, catalog=catalog)[:]
    return Pictures(everything["image"], everything["label"].astype(np.int32))


def shares():
    """This process' share among those of JAX; all of it where there is no JAX."""
    try:
        return grain.ShardByJaxProcess(drop_remainder=True)
    except ImportError:
        return grain.ShardOptions(shard_index=0, shard_count=1, drop_remainder=True)


def make_loader(source, *, batch_size=64, seed=42, num_epochs=None, drop_remainder=True, worker_count=4, threads=4, rotate=0, shard_options=None):
    sampler = grain.IndexSampler(
        num_records=len(source), shard_options=shard_options or shares(), shuffle=True, num_epochs=num_epochs, seed=seed
    )
    operations = [Normalise(), Flip(), *([Rotate(rotate)] if rotate else []), grain.Batch(batch_size, drop_remainder=drop_remainder)]
    return grain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=operations,
        worker_count=worker_count,
        read_options=grain.ReadOptions(num_threads=threads, prefetch_buffer_size=256),
    )


def time_workers(source, plot, counts=(0, 2, 4, 8), batches=200, **options):
    """Batches per second by number of workers, after the first batch; and a picture of them."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    rates = []
    for count in counts:
        iterator = iter(make_loader(source, worker_count=count, **options))
        next(iterator)
        start = time.perf_counter()
        for _ in range(batches):
            next(iterator)
        rates.append(batches / (time.perf_counter() - start))
        print(f"{count} workers: {rates[-1]:.0f} batches/s", flush=True)
    figure, axes = pyplot.subplots()
    axes.bar([str(count) for count in counts], rates)
    axes.set(xlabel="workers", ylabel="batches per second", title=f"{grain.__name__}, batches of {options.get('batch_size', 64)}")
    figure.savefig(plot)
    return rates


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--catalog", help="default: $PREP_CATALOG")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--epochs", type=int, help="default: endless")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=4, help="that read, in each worker")
    parser.add_argument("--rotate", type=float, default=0, help="up to so many degrees, at random")
    parser.add_argument("--keep-remainder", action="store_true", help="the last batch of a finite stream may be short, and is compiled for")
    parser.add_argument("--checkpoints", help="folder: model and iterator are saved, and gone on from")
    parser.add_argument("--save-every", type=int, default=500, help="steps")
    parser.add_argument("--plot", help="only times 0, 2, 4 and 8 workers, and draws that to this file")
    arguments = parser.parse_args(words)

    source = open_source(catalog=arguments.catalog)
    options = {"batch_size": arguments.batch_size, "seed": arguments.seed, "threads": arguments.threads, "rotate": arguments.rotate}
    if arguments.plot:
        time_workers(source, arguments.plot, batches=arguments.steps, **options)
        return None
    from classifier import Training

    loader = make_loader(
        source, num_epochs=arguments.epochs, drop_remainder=not arguments.keep_remainder, worker_count=arguments.workers, **options
    )
    training = Training(arguments.seed, max_traces=2 if arguments.keep_remainder else 1)
    training.run(
        iter(loader),
        arguments.steps,
        checkpoints=arguments.checkpoints,
        save=grain.PyGrainCheckpointSave,
        restore=grain.PyGrainCheckpointRestore,
        save_every=arguments.save_every,
    )
    return training


if __name__ == "__main__":
    main()
