"""What gradients that come one step late do to a training: the same one, synchronous and with `ksteps`.

    farandole launch -n 2 -- python examples/late_gradients.py
    farandole launch -n 2 -- python examples/late_gradients.py --rates 0.05 --seeds 1 --json late.json

Each row is a learning rate, each column a way: every step synchronous; late after the first tenth of the steps; late from
the second step on; late in the first tenth only. A cell is the loss on held-out data after training, averaged
over seeds, and the share of arms told right.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from torch import Tensor, nn

import farandole.torch as hvd
from train import classifier, spirals

MOMENTUM = 0.9


def ways(steps: int) -> dict[str, int]:
    """`ksteps` by name."""
    return {"synchronous": 0, "then late": steps // 10, "late": 1, "late first": -(steps // 10)}


def batch(points: Tensor, arm: Tensor, size: int, step: int) -> tuple[Tensor, Tensor]:
    """This rank's part of a step's batch."""
    start = (step * hvd.size() + hvd.rank()) * size
    index = torch.arange(start, start + size) % len(points)
    return points[index], arm[index]


def train(rate: float, seed: int, ksteps: int, options: argparse.Namespace) -> tuple[float, float]:
    """Loss and accuracy on data that was not trained on."""
    torch.manual_seed(seed)
    model = classifier(options.width)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=rate, momentum=MOMENTUM), model.named_parameters(), ksteps=ksteps
    )
    points, arm = spirals(options.samples, seed).tensors
    for step in range(options.steps):
        x, y = batch(points, arm, options.batch_size, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.drain()
    with torch.no_grad():
        points, arm = spirals(options.samples, seed + 1000).tensors
        scores = model(points)
        right = (scores.argmax(1) == arm).float().mean().item()
        return nn.functional.cross_entropy(scores, arm).item(), right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.03, 0.1, 0.3], help="learning rates")
    parser.add_argument("--seeds", type=int, default=3, help="trainings a cell is the mean of (default 3)")
    parser.add_argument("--steps", type=int, default=1500, help="steps of a training (default 1500)")
    parser.add_argument("--batch-size", type=int, default=32, help="samples a rank and step (default 32)")
    parser.add_argument("--samples", type=int, default=2048, help="samples to train on (default 2048)")
    parser.add_argument("--width", type=int, default=64, help="width of the hidden layers (default 64)")
    parser.add_argument("--json", type=Path, help="also write every training's figures to this file")
    options = parser.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    columns = ways(options.steps)
    found = []
    if hvd.rank() == 0:
        print("rate    " + "".join(f"{name:>18}" for name in columns), flush=True)
    for rate in options.rates:
        cells = []
        for name, ksteps in columns.items():
            results = [train(rate, seed, ksteps, options) for seed in range(options.seeds)]
            found += [{"rate": rate, "way": name, "ksteps": ksteps, "loss": a, "right": b} for a, b in results]
            losses, shares = zip(*results)
            cells.append(f"{statistics.mean(losses):.3f} ({statistics.mean(shares):.0%})")
        if hvd.rank() == 0:
            print(f"{rate:<8g}" + "".join(f"{cell:>18}" for cell in cells), flush=True)
    if options.json is not None and hvd.rank() == 0:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
