"""Handwritten digits with Horovod's API: a script as people have them, and one line that differs.

    horovodrun -np 2 python script.py                            with  import horovod.torch as hvd
    farandole launch -np 2 python examples/horovod_script.py     with  import farandole.torch as hvd

The digits are drawn here instead of downloaded: shifted, noisy seven-segment figures of MNIST's shape.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import farandole.torch as hvd

# Rows and columns that each segment of a seven-segment display fills, in a figure of 17 x 10 pixels.
SEGMENTS = {
    "top": (slice(0, 2), slice(0, 10)),
    "middle": (slice(7, 9), slice(0, 10)),
    "bottom": (slice(15, 17), slice(0, 10)),
    "upper left": (slice(0, 9), slice(0, 2)),
    "upper right": (slice(0, 9), slice(8, 10)),
    "lower left": (slice(7, 17), slice(0, 2)),
    "lower right": (slice(7, 17), slice(8, 10)),
}
DARK = {
    0: ["middle"],
    1: ["top", "middle", "bottom", "upper left", "lower left"],
    2: ["upper left", "lower right"],
    3: ["upper left", "lower left"],
    4: ["top", "bottom", "lower left"],
    5: ["upper right", "lower left"],
    6: ["upper right"],
    7: ["middle", "bottom", "upper left", "lower left"],
    8: [],
    9: ["lower left"],
}


def figure(digit):
    image = torch.zeros(17, 10)
    for segment, (rows, columns) in SEGMENTS.items():
        if segment not in DARK[digit]:
            image[rows, columns] = 1.0
    return image


def digits(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (samples,), generator=generator)
    rows = torch.randint(4, 8, (samples,), generator=generator)
    columns = torch.randint(7, 12, (samples,), generator=generator)
    figures = [figure(digit) for digit in range(10)]
    images = 0.2 * torch.randn(samples, 1, 28, 28, generator=generator)
    for image, label, row, column in zip(images, labels.tolist(), rows.tolist(), columns.tolist()):
        image[0, row : row + 17, column : column + 10] += figures[label]
    return TensorDataset((images - images.mean()) / images.std(), labels)


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 5, padding=2)
        self.conv2 = nn.Conv2d(8, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 100)
        self.fc2 = nn.Linear(100, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


def train(args, model, loader, sampler, optimizer, epoch):
    model.train()
    sampler.set_epoch(epoch)
    for batch, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if batch % args.log_interval == 0 and hvd.rank() == 0:
            seen = batch * args.batch_size
            print(f"Train Epoch: {epoch} [{seen}/{len(sampler)}]\tLoss: {loss.item():.4f}", flush=True)


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def test(model, loader, sampler):
    model.eval()
    loss, correct = 0.0, 0.0
    with torch.no_grad():
        for images, labels in loader:
            output = model(images)
            loss += F.cross_entropy(output, labels, reduction="sum").item()
            correct += (output.argmax(1) == labels).float().sum().item()
    # Each rank has seen its own part: the mean over the ranks is that of all.
    loss = metric_average(loss / len(sampler), "avg_loss")
    accuracy = metric_average(correct / len(sampler), "avg_accuracy")
    if hvd.rank() == 0:
        print(f"Test set: Average loss: {loss:.4f}, Accuracy: {100.0 * accuracy:.2f}%\n", flush=True)


def main():
    parser = argparse.ArgumentParser(description="Digits with Horovod's API")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--test-batch-size", type=int, default=500)
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log-interval", type=int, default=20)
    parser.add_argument("--fp16-allreduce", action="store_true", default=False)
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(args.seed)

    train_dataset = digits(args.samples, seed=1)
    train_sampler = DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_dataset, batch_size=args.batch_size, sampler=train_sampler)
    test_dataset = digits(args.samples // 8, seed=2)
    test_sampler = DistributedSampler(test_dataset, num_replicas=hvd.size(), rank=hvd.rank())
    test_loader = DataLoader(test_dataset, batch_size=args.test_batch_size, sampler=test_sampler)

    model = LeNet()
    optimizer = optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=args.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        op=hvd.Average,
    )

    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, train_sampler, optimizer, epoch)
        test(model, test_loader, test_sampler)


if __name__ == "__main__":
    main()
