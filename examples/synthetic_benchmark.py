"""Images per second of a ResNet on synthetic images: Horovod's flags and output lines.

    farandole launch -n 2 -- python examples/synthetic_benchmark.py --model resnet50 --image-size 64

Every rank trains on one batch of random images of its own, again and again. The rate of a rank is the mean over
`--num-iters` measurements of `--num-batches-per-iter` steps each, with 1.96 standard deviations.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import farandole.torch as hvd
from farandole.workloads.cnn.resnet import MODELS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Images per second of a ResNet on synthetic images.")
    add = parser.add_argument
    add("--model", choices=sorted(MODELS), default="resnet50")
    add("--batch-size", type=int, default=32, help="images a step on each rank")
    add("--image-size", type=int, default=224, help="height and width of an image")
    add("--num-warmup-batches", type=int, default=10, help="steps before the measurement")
    add("--num-batches-per-iter", type=int, default=10, help="steps of one measurement")
    add("--num-iters", type=int, default=10, help="measurements")
    add("--fp16-allreduce", action="store_true", help="gradients travel in half precision")
    add("--no-cuda", action="store_true", help="leave GPUs alone")
    return parser.parse_args()


def training_step(options: argparse.Namespace, device: torch.device) -> Callable[[], None]:
    """One step of a model that starts from the same weights on every rank."""
    model = MODELS[options.model]().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size())
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if options.fp16_allreduce else hvd.Compression.none,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    images = torch.randn(options.batch_size, 3, options.image_size, options.image_size, device=device)
    labels = torch.randint(1000, (options.batch_size,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def seconds_of(step: Callable[[], None], times: int, device: torch.device) -> float:
    began = time.perf_counter()
    for _ in range(times):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def say(line: str) -> None:
    if hvd.rank() == 0:
        print(line, flush=True)


def main() -> None:
    options = arguments()
    hvd.init()
    on_gpu = torch.cuda.is_available() and not options.no_cuda
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    kind = "GPU" if on_gpu else "CPU"
    step = training_step(options, device)

    say(f"Model: {options.model}")
    say(f"Batch size: {options.batch_size}")
    say(f"Number of {kind}s: {hvd.size()}")
    say("Running warmup...")
    seconds_of(step, options.num_warmup_batches, device)
    say("Running benchmark...")
    rates = []
    for number in range(options.num_iters):
        seconds = seconds_of(step, options.num_batches_per_iter, device)
        rates.append(options.batch_size * options.num_batches_per_iter / seconds)
        say(f"Iter #{number}: {rates[-1]:.1f} img/sec per {kind}")

    mean, spread = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
    say(f"Img/sec per {kind}: {mean:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {hvd.size()} {kind}(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")


if __name__ == "__main__":
    main()
