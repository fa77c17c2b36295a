"""Train a classifier of generated spirals, on any number of ranks.

    python examples/train.py
    farandole launch -n 2 -- python examples/train.py
    mpiexec -n 2 python examples/train.py --epochs 4 --json result.json

Each rank takes `--batch-size` samples a step, so that more ranks mean a larger batch and a higher learning rate.
With `--global-batch` the work of a step stays the same and is divided among the ranks: the loss then follows the
same curve on any number of them.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import farandole.torch as hvd

ARMS = 5
FIRST_STEPS = 3
"""Steps that are not timed: they make buffers and fill caches."""


def spirals(samples: int, seed: int) -> TensorDataset:
    """Points on interleaved spiral arms, and the arm each belongs to."""
    generator = torch.Generator().manual_seed(seed)
    arm = torch.randint(ARMS, (samples,), generator=generator)
    radius = torch.rand(samples, generator=generator).sqrt()
    angle = 2 * torch.pi * (arm / ARMS + 0.75 * radius)
    points = radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
    return TensorDataset(points + 0.02 * torch.randn(samples, 2, generator=generator), arm)


def classifier(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(2, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, ARMS),
    )  # fmt: skip


def train_epoch(
    model: nn.Module,
    loader: DataLoader[Any],
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> list[float]:
    """One pass over this rank's part of the data; the seconds of each step."""
    model.train()
    seconds = []
    began = time.perf_counter()
    for points, arm in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), arm).backward()
        optimizer.step()
        schedule.step()
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    return seconds


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader[Any]) -> tuple[float, float]:
    """Loss and accuracy over all ranks: each looks at its own part of the data."""
    model.eval()
    totals = torch.zeros(3)
    for points, arm in loader:
        scores: Tensor = model(points)
        totals[0] += nn.functional.cross_entropy(scores, arm, reduction="sum")
        totals[1] += (scores.argmax(1) == arm).sum()
        totals[2] += len(arm)
    loss, correct, seen = hvd.allreduce(totals, op=hvd.Sum, name="evaluation").tolist()
    return loss / seen, correct / seen


def local_batch(options: argparse.Namespace) -> int:
    """Samples a step on this rank."""
    if options.global_batch is None:
        return int(options.batch_size)
    if options.global_batch % hvd.size():
        raise SystemExit(f"--global-batch {options.global_batch} does not divide over {hvd.size()} ranks")
    return int(options.global_batch) // hvd.size()


def distributed_optimizer(
    model: nn.Module, options: argparse.Namespace, epoch_steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """SGD over all ranks, from the same state on each, and the schedule of its learning rate."""
    larger_batch = options.global_batch is None
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    hvd.scale_learning_rate(optimizer, "linear" if larger_batch else "none")
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return optimizer, hvd.warmup(optimizer, options.warmup_epochs * epoch_steps if larger_batch else 0)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Train, and return what was measured."""
    batch = local_batch(options)
    data, unseen = spirals(options.samples, seed=1), spirals(max(hvd.size(), options.samples // 8), seed=2)
    sampler = hvd.shard(data, drop_last=True)
    loader = DataLoader(data, batch, sampler=sampler, drop_last=True)
    unseen_loader = DataLoader(unseen, batch, sampler=hvd.shard(unseen, shuffle=False))
    if not len(loader):
        raise SystemExit(f"--samples {options.samples} is less than one step of {hvd.size()} x {batch}")

    model = classifier(options.width)
    optimizer, schedule = distributed_optimizer(model, options, epoch_steps=len(loader))
    parameters, global_batch = sum(p.numel() for p in model.parameters()), batch * hvd.size()
    say(f"{hvd.size()} rank(s) x {torch.get_num_threads()} thread(s), {parameters:,} parameters, "
        f"{global_batch} samples a step")  # fmt: skip
    seconds: list[float] = []
    epochs = []
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        seconds += train_epoch(model, loader, optimizer, schedule)
        loss, accuracy = evaluate(model, unseen_loader)
        epochs.append({"loss": loss, "accuracy": accuracy})
        say(f"epoch {epoch + 1:2d}/{options.epochs}: loss {loss:.4f}, accuracy {accuracy:.1%}")
    step_s = statistics.median(seconds[FIRST_STEPS:] or seconds)
    return {
        "ranks": hvd.size(),
        "threads": torch.get_num_threads(),
        "parameters": parameters,
        "global_batch": global_batch,
        "steps": len(seconds),
        "step_ms": step_s * 1e3,
        "samples_per_s": global_batch / step_s,
        "epochs": epochs,
    }


def say(line: str) -> None:
    """One line from all ranks together."""
    if hvd.rank() == 0:
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a classifier of generated spirals, on any number of ranks.")
    add = parser.add_argument
    add("--epochs", type=int, default=10)
    add("--samples", type=int, default=16384, help="how many are made for training")
    add("--width", type=int, default=512, help="of the three hidden layers")
    add("--batch-size", type=int, default=128, metavar="N", help="samples a step on each rank")
    add("--global-batch", type=int, metavar="N", help="samples a step over all ranks, instead of --batch-size")
    add("--lr", type=float, default=0.05, help="for one rank; with --batch-size it grows with the ranks")
    add("--warmup-epochs", type=int, default=2, help="until the learning rate has grown")
    add("--json", type=Path, metavar="FILE", help="write what was measured")
    options = parser.parse_args()

    hvd.init()
    torch.manual_seed(hvd.rank())  # ranks start apart, and broadcast_parameters brings them together
    result = run(options)
    say(f"step {result['step_ms']:.1f} ms (median of {result['steps']}), "
        f"{result['samples_per_s']:,.0f} samples/s over {result['ranks']} rank(s)")  # fmt: skip
    if options.json is not None and hvd.rank() == 0:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
