"""Trains a classifier on Fashion-MNIST with PyTorch; `StatefulDataLoader` saves where the stream stands beside the model.

    prep build fashion_mnist
    python train_torch.py --checkpoint fashion.pt --save-every 500
    torchrun --nproc-per-node 2 train_torch.py

Needs torch and torchdata.
"""

import argparse
import os
import pathlib

import torch

import prep.torch


def save(path, **state):
    """Whole or not at all: a kill in the middle leaves the last one."""
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--catalog", help="default: $PREP_CATALOG")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=64, help="of one rank")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--workers", type=int, default=0, help="processes; threads of Rust are quicker")
    parser.add_argument("--checkpoint", help="file: model and stream are saved, and gone on from")
    parser.add_argument("--save-every", type=int, default=500, help="steps")
    arguments = parser.parse_args(words)

    is_distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_distributed:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(arguments.seed)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(28 * 28, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    step_model = torch.nn.parallel.DistributedDataParallel(model) if is_distributed else model
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = prep.torch.loader(
        "fashion_mnist",
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        drop_remainder=True,
        num_workers=arguments.workers,
        pin_memory=torch.cuda.is_available(),
        catalog=arguments.catalog,
    )
    step, losses = 0, []
    # Each rank has a state of its own where there are worker processes.
    checkpoint = None
    if arguments.checkpoint:
        rank = torch.distributed.get_rank() if is_distributed else 0
        checkpoint = pathlib.Path(arguments.checkpoint if rank == 0 else f"{arguments.checkpoint}.{rank}")
    if checkpoint is not None and checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["stream"])
        step = saved["step"]
        print(f"goes on after step {step}")
    for batch in loader:
        if step >= arguments.steps:
            break
        loss = torch.nn.functional.cross_entropy(step_model(batch["image"].float() / 255), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        step += 1
        if step % 100 == 0:
            print(f"step {step}: loss {losses[-1]:.4f}", flush=True)
        if checkpoint is not None and step % arguments.save_every == 0:
            save(checkpoint, model=model.state_dict(), optimizer=optimizer.state_dict(), stream=loader.state_dict(), step=step)
    if is_distributed:
        torch.distributed.destroy_process_group()
    return losses


if __name__ == "__main__":
    main()
