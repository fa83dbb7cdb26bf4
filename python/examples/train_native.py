"""Trains the classifier of `train_grain.py` with `prep.load`: batches made by threads of Rust, read ahead onto the device.

    prep build fashion_mnist
    python train_native.py --checkpoints /tmp/fashion --save-every 500

Pictures are normalised and mirrored by the compiled step, where that costs least. The stream is the same for any number of threads, and goes
on from a checkpoint on any number of hosts. Needs jax, flax, optax, orbax-checkpoint and chex.
"""

import argparse

import jax
import jax.numpy as jnp
from classifier import Training

import prep
import prep.jax
import prep.orbax


def prepare(images, labels, step):
    """uint8 to float32, 0 to 1; every second picture mirrored, by the step's number."""
    flips = jax.random.bernoulli(jax.random.fold_in(jax.random.key(0), step), shape=(images.shape[0], 1, 1, 1))
    return jnp.where(flips, images[:, :, ::-1], images) / 255, labels


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--catalog", help="default: $PREP_CATALOG")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=64, help="of all hosts")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--epochs", type=int, help="default: endless")
    parser.add_argument("--threads", type=int, help="default: one a processor")
    parser.add_argument("--keep-remainder", action="store_true", help="the last batch of an epoch may be short, and is compiled for")
    parser.add_argument("--checkpoints", help="folder: model and stream are saved, and gone on from")
    parser.add_argument("--save-every", type=int, default=500, help="steps")
    arguments = parser.parse_args(words)

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    share = prep.jax.process_shard(sharding)
    loader = prep.load(
        "fashion_mnist",
        batch_size=arguments.batch_size // share["shard_count"],
        seed=arguments.seed,
        num_epochs=arguments.epochs,
        drop_remainder=not arguments.keep_remainder,
        num_threads=arguments.threads,
        catalog=arguments.catalog,
        **share,
    )
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    training = Training(arguments.seed, 2 if arguments.keep_remainder else 1, prepare, everywhere)
    with prep.jax.prefetch_to_device(loader, sharding=sharding, check_shapes=not arguments.keep_remainder) as batches:
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
