"""Trains the classifier of `train_grain.py` with `prep.MapDataset`: threads of Rust read and batch, Python functions run in workers.

    prep build fashion_mnist
    python train_native.py --checkpoints fashion --save-every 500

The stream is the same for any number of threads and workers, and goes on from a checkpoint on any number of hosts. Batches are read ahead
onto the devices, sharded over all of them. Needs jax, flax, optax, orbax-checkpoint and chex.
"""

import argparse

import jax
import numpy as np
from classifier import Training

import prep
import prep.jax
import prep.orbax


def normalise(element):
    """uint8 to float32, 0 to 1."""
    return {"image": element["image"].astype(np.float32) / 255, "label": element["label"]}


def flip(element, rng):
    """Mirrors every second picture, by the generator of its place in the stream."""
    return {**element, "image": element["image"][:, ::-1]} if rng.random() < 0.5 else element


def make_dataset(*, batch_size=64, seed=42, num_epochs=None, drop_remainder=True, workers=0, split="train", catalog=None):
    return (
        prep.MapDataset.load("fashion_mnist", split=split, catalog=catalog)
        .shuffle(seed)
        .map(normalise)
        .random_map(flip, seed=seed)
        .batch(batch_size, drop_remainder=drop_remainder)
        .repeat(num_epochs)
        .options(workers=workers)
    )


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--catalog", help="default: $PREP_CATALOG")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=64, help="of all hosts")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--epochs", type=int, help="default: endless")
    parser.add_argument("--workers", type=int, default=0, help="processes for the functions; by default threads of this one run them")
    parser.add_argument("--keep-remainder", action="store_true", help="the last batch of an epoch may be short, and is compiled for")
    parser.add_argument("--checkpoints", help="folder: model and stream are saved, and gone on from")
    parser.add_argument("--save-every", type=int, default=500, help="steps")
    arguments = parser.parse_args(words)

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    over_data, everywhere = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)) for axes in (["data"], []))
    share = prep.jax.process_shard(over_data)
    dataset = make_dataset(
        batch_size=arguments.batch_size // share["shard_count"],
        seed=arguments.seed,
        num_epochs=arguments.epochs,
        drop_remainder=not arguments.keep_remainder,
        workers=arguments.workers,
        catalog=arguments.catalog,
    ).shard(**share)
    training = Training(arguments.seed, max_traces=2 if arguments.keep_remainder else 1, sharding=everywhere)
    with prep.jax.prefetch_to_device(dataset, sharding=over_data, check_shapes=not arguments.keep_remainder) as batches:
        training.run(
            batches,
            arguments.steps,
            checkpoints=arguments.checkpoints,
            save=prep.orbax.SaveArgs,
            restore=prep.orbax.RestoreArgs,
            save_every=arguments.save_every,
        )
    return training


if __name__ == "__main__":
    main()
