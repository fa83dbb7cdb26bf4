"""A classifier of small pictures in Flax, and its training: what the programs beside this one share."""

import pathlib
import time

import chex
import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
from flax import nnx


class Classifier(nnx.Module):
    """Two layers over `float32[batch, 28, 28, 1]`; ten classes."""

    def __init__(self, rngs, hidden=128):
        self.hidden = nnx.Linear(28 * 28, hidden, rngs=rngs)
        self.logits = nnx.Linear(hidden, 10, rngs=rngs)

    def __call__(self, images):
        return self.logits(nnx.relu(self.hidden(images.reshape(images.shape[0], -1))))


class Training:
    """A model, its optimiser, and one compiled step. `traces` counts how often the step was compiled; more than `max_traces` is an error.

    `sharding` says where the model lies, in case of several devices.
    """

    def __init__(self, seed=0, max_traces=1, sharding=None):
        self.model = Classifier(nnx.Rngs(seed))
        self.optimizer = nnx.Optimizer(self.model, optax.adam(1e-3), wrt=nnx.Param)
        if sharding is not None:
            nnx.update((self.model, self.optimizer), jax.device_put(self._state(), sharding))
        self.step = 0
        self.losses = []
        self.traces = 0

        def train_step(model, optimizer, images, labels):
            self.traces += 1

            def loss(model):
                return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

            value, gradients = nnx.value_and_grad(loss)(model)
            optimizer.update(model, gradients)
            return value

        chex.clear_trace_counter()
        self._train_step = nnx.jit(chex.assert_max_traces(train_step, n=max_traces))

    def run(self, batches, steps, *, checkpoints=None, save=None, restore=None, save_every=None, say_every=100):
        """Trains until `steps` steps are done in all, and goes on from the last checkpoint, where there is one.

        Args:
            batches: An iterator over dicts with `image`, float32[batch, 28, 28, 1], and `label`.
            checkpoints: Folder for model and iterator. Default: nothing is saved.
            save, restore: Orbax's arguments for the iterator: `grain.PyGrainCheckpointSave`, or `prep.orbax.SaveArgs`; and their counterparts.
            save_every: Steps.
        """
        manager = None if checkpoints is None else ocp.CheckpointManager(pathlib.Path(checkpoints).absolute())
        if manager is not None and manager.latest_step() is not None:
            self.step = manager.latest_step()
            arguments = ocp.args.Composite(model=ocp.args.StandardRestore(self._state()), data=restore(batches))
            nnx.update((self.model, self.optimizer), manager.restore(self.step, args=arguments)["model"])
            print(f"goes on after step {self.step}")
        start = time.perf_counter()
        for batch in batches:
            loss = self._train_step(self.model, self.optimizer, jnp.asarray(batch["image"]), jnp.asarray(batch["label"]))
            self.losses.append(loss)
            self.step += 1
            if self.step % say_every == 0:
                rate = len(self.losses) / (time.perf_counter() - start)
                print(f"step {self.step}: loss {float(loss):.4f}, {rate:.0f} steps/s", flush=True)
            if manager is not None and self.step % save_every == 0:
                arguments = ocp.args.Composite(model=ocp.args.StandardSave(self._state()), data=save(batches))
                manager.save(self.step, args=arguments)
            if self.step >= steps:
                break
        if manager is not None:
            manager.close()
        self.losses = [float(loss) for loss in jax.device_get(self.losses)]
        few = max(1, len(self.losses) // 20)
        first, last = sum(self.losses[:few]) / few, sum(self.losses[-few:]) / few
        print(f"{len(self.losses)} steps, compiled {'once' if self.traces == 1 else f'{self.traces} times'}: loss {first:.3f}, then {last:.3f}")

    def _state(self):
        return nnx.state((self.model, self.optimizer))
