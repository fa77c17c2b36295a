"""A training that outlives the death of a rank: the launcher starts it again, from its last commit.

    farandole launch -n 2 --restarts 2 -- python examples/elastic_training.py
    farandole launch -n 2 --restarts 2 -- python examples/elastic_training.py --kill 1

With `--kill` a rank kills itself in the middle of the second epoch. The losses are those of the training in which
it did not, to the last bit.
"""

import argparse
import json
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import farandole.torch as hvd

BATCHES_PER_COMMIT = 5


def waves(samples: int) -> TensorDataset:
    """Points, and the height of a wave at each."""
    points = 2 * torch.rand(samples, 2, generator=torch.Generator().manual_seed(1))
    return TensorDataset(points, (points[:, :1] * points[:, 1:]).sin())


def make_state(data: TensorDataset) -> hvd.elastic.TorchState:
    """Everything a training has to go back to; the rest is made anew at every start."""
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(data)
    return hvd.elastic.TorchState(
        model, optimizer, schedule=schedule, sampler=sampler, epoch=0, batch=0, losses=[]
    )


@hvd.elastic.run
def train(state: hvd.elastic.TorchState, data: TensorDataset, options: argparse.Namespace) -> None:
    loader = DataLoader(data, options.batch_size, sampler=state.sampler)
    while state.epoch < options.epochs:
        # After a restart the sampler leaves out what is done: `number` counts from 0 again, `state.batch` goes on.
        for number, (points, heights) in enumerate(loader):
            if options.kill == hvd.rank() and (state.epoch, state.batch) == (1, BATCHES_PER_COMMIT + 2):
                die_once()
            state.losses.append(step(state, points, heights))
            state.sampler.record_batch(number, options.batch_size)
            state.batch += 1
            if state.batch % BATCHES_PER_COMMIT == 0:
                state.commit()
        end_epoch(state)


def step(state: hvd.elastic.TorchState, points: torch.Tensor, heights: torch.Tensor) -> float:
    """Train on one batch; the loss over all ranks."""
    state.optimizer.zero_grad()
    loss = nn.functional.mse_loss(state.model(points), heights)
    loss.backward()
    state.optimizer.step()
    return float(hvd.allreduce(loss.detach(), name="loss"))


def end_epoch(state: hvd.elastic.TorchState) -> None:
    loss = sum(state.losses[-state.batch :]) / state.batch
    if hvd.rank() == 0:
        print(f"epoch {state.epoch + 1}: {state.batch} batches, loss {loss:.4f}", flush=True)
    state.schedule.step()
    state.epoch += 1
    state.batch = 0
    state.sampler.set_epoch(state.epoch)
    state.commit()


def die_once() -> None:
    """In the first of the job's lives, as if the machine had taken the process away."""
    if os.environ.get("FARANDOLE_RESTART", "0") == "0":
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description="A training that outlives the death of a rank.")
    add = parser.add_argument
    add("--epochs", type=int, default=4)
    add("--samples", type=int, default=1000, help="how many are made")
    add("--batch-size", type=int, default=32, metavar="N", help="samples a step on each rank")
    add("--kill", type=int, metavar="RANK", help="kill this rank in the second epoch")
    add("--json", type=Path, metavar="FILE", help="write the loss of every step")
    options = parser.parse_args()

    hvd.init()
    torch.manual_seed(hvd.rank())
    data = waves(options.samples)
    state = make_state(data)
    train(state, data, options)
    if options.json is not None and hvd.rank() == 0:
        options.json.write_text(json.dumps(state.losses) + "\n")


if __name__ == "__main__":
    main()
