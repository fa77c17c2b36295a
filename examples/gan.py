"""A small GAN whose two networks train at the same time, each with a team of its own.

    farandole launch -n 2 -- python examples/gan.py

The generator learns to place points on a ring. In every step both networks run backward before either steps:
while the generator's gradients are still being computed, the discriminator's are already on their way. Each
optimizer has its own team (threads and communicator), so that neither waits for the other.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import farandole.torch as hvd

NOISE = 8
SECTORS = 16


def ring(samples: int) -> Tensor:
    """Points near the circle of radius 1."""
    angle = 2 * torch.pi * torch.rand(samples)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(samples, 2)


def network(inputs: int, outputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.LeakyReLU(0.2),
        nn.Linear(width, width), nn.LeakyReLU(0.2),
        nn.Linear(width, outputs),
    )  # fmt: skip


def distributed(model: nn.Module, name: str, rate: float, threads: int) -> torch.optim.Optimizer:
    """An optimizer with its own team; the ranks start from the same weights."""
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), rate, betas=(0.5, 0.9)),
        named_parameters=[(f"{name}.{key}", p) for key, p in model.named_parameters()],
        team=hvd.Team(threads=threads),
    )


@torch.no_grad()
def verdict(generator: nn.Module, samples: int = 1000) -> str:
    """How far generated points are from the ring, and how much of it they reach, over all ranks."""
    points = generator(torch.randn(samples, NOISE))
    distance = hvd.allreduce((points.norm(dim=1) - 1).abs().mean(), name="distance")
    sector = (torch.atan2(points[:, 1], points[:, 0]) / (2 * torch.pi) % 1 * SECTORS).long()
    reached = hvd.allreduce(torch.bincount(sector, minlength=SECTORS).clamp(max=1), op=hvd.Max, name="reached")
    return f"generated points are {distance:.3f} off the ring and reach {reached.sum()} of its {SECTORS} sectors"


def say(line: str) -> None:
    if hvd.rank() == 0:
        print(line, flush=True)


def train(options: argparse.Namespace) -> None:
    generator, discriminator = network(NOISE, 2, options.width), network(2, 1, options.width)
    generator_step = distributed(generator, "generator", options.lr, options.threads)
    discriminator_step = distributed(discriminator, "discriminator", 2 * options.lr, options.threads)
    torch.manual_seed(1 + hvd.rank())  # from here on every rank draws its own points

    for step in range(options.steps + 1):
        if step % options.report_every == 0:
            say(f"step {step:4d}: {verdict(generator)}")
        real, generated = ring(options.batch_size), generator(torch.randn(options.batch_size, NOISE))
        generator_step.zero_grad()
        discriminator_step.zero_grad()
        # `inputs` keeps each loss to its own network: the generator's gradient passes through the discriminator.
        fooled = softplus(-discriminator(real)).mean() + softplus(discriminator(generated.detach())).mean()
        fooled.backward(inputs=list(discriminator.parameters()))
        caught = softplus(-discriminator(generated)).mean()
        caught.backward(inputs=list(generator.parameters()))
        discriminator_step.step()
        generator_step.step()

    weights = [*generator.parameters(), *discriminator.parameters()]
    same = hvd.check_buffers_match([p.detach() for p in weights]) == 0
    say(f"the weights of {hvd.size()} rank(s) are {'equal' if same else 'NOT equal'}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A small GAN whose two networks train at the same time.")
    add = parser.add_argument
    add("--steps", type=int, default=1000)
    add("--report-every", type=int, default=200, metavar="STEPS")
    add("--batch-size", type=int, default=128, help="points a step on each rank")
    add("--width", type=int, default=128, help="of both networks")
    add("--lr", type=float, default=0.001, help="the generator's; the discriminator's is twice as high")
    add("--threads", type=int, default=1, help="of each team")
    options = parser.parse_args()
    hvd.init()
    torch.manual_seed(0)
    train(options)


if __name__ == "__main__":
    main()
