"""Every optimizer of torch.optim: N ranks with a shard each train as one process does with the whole batch.

All ranks end with the same bits. One rank ends with plain torch's bits. N ranks come within `TOLERANCE` of plain
torch: a mean of shards' means adds the same numbers in another order, which moves a float64 sum by some 1e-16,
and optimizers that divide by a gradient's size or iterate on it (Adam, LBFGS, Muon) enlarge that.
"""

import inspect

import pytest

from ranktest import rank_test

TOLERANCE = 1e-9
STEPS = 3
ROWS = 12  # divides by 1, 2 and 3

LEFT_OUT = {
    "Optimizer": "the base class",
    "SparseAdam": "takes sparse gradients only, so that it does not accept a dense model",
}
WANTED = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01, "max_iter": 3, "line_search_fn": "strong_wolfe"}
VARIANTS = {"plain": {}, "foreach": {"foreach": True}, "fused": {"fused": True}, "maximize": {"maximize": True}}


def optimizer_classes():
    import torch

    found = {name: value for name, value in vars(torch.optim).items() if inspect.isclass(value)}
    return {
        name: value
        for name, value in sorted(found.items())
        if issubclass(value, torch.optim.Optimizer) and name not in LEFT_OUT
    }


def construct(kind, model, variant):
    """The optimizer, or None where it has no such option."""
    known = inspect.signature(kind).parameters
    if not VARIANTS[variant].keys() <= known.keys():
        return None
    options = {name: value for name, value in WANTED.items() if name in known} | VARIANTS[variant]
    return kind(model.parameters(), **options)


def build_model(biases):
    """One matrix above the size that is reduced where it lies, the rest packed."""
    import torch
    from torch import nn

    torch.manual_seed(7)
    layers = nn.Linear(8, 512, biases), nn.Tanh(), nn.Linear(512, 256, biases), nn.Tanh(), nn.Linear(256, 2, biases)
    return nn.Sequential(*layers).double()


def train(model, optimizer, rows):
    import torch
    from torch.nn.functional import mse_loss

    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(STEPS, ROWS, 8, generator=generator, dtype=torch.float64)
    targets = torch.randn(STEPS, ROWS, 2, generator=generator, dtype=torch.float64)
    for step in range(STEPS):

        def closure(step=step):
            optimizer.zero_grad()
            loss = mse_loss(model(inputs[step, rows]), targets[step, rows])
            loss.backward()
            return loss

        optimizer.step(closure)
    return [p.detach().clone() for p in model.parameters()]


def difference(hvd, kind, variant):
    """What is wrong with this optimizer, if anything."""
    import torch

    biases = kind.__name__ != "Muon"  # it takes matrices only
    plain, distributed = build_model(biases), build_model(biases)
    optimizer = construct(kind, plain, variant)
    if optimizer is None:
        return None
    expected = train(plain, optimizer, slice(None))
    wrapped = hvd.DistributedOptimizer(
        construct(kind, distributed, variant), named_parameters=distributed.named_parameters()
    )
    found = train(distributed, wrapped, slice(hvd.rank(), ROWS, hvd.size()))
    moved = any(not torch.equal(p, q) for p, q in zip(expected, build_model(biases).parameters()))
    if not moved:
        return "plain torch did not train"
    if hvd.check_buffers_match(found) != 0:
        return "ranks differ"
    if hvd.size() == 1 and not all(map(torch.equal, found, expected)):
        return "one rank differs from plain torch"
    furthest = max((a - b).abs().max().item() for a, b in zip(found, expected))
    return None if furthest <= TOLERANCE else f"differs from plain torch by {furthest:g}"


@rank_test(n=[1, 3], door="torch", timeout=60)
def test_every_optimizer_trains_as_on_one_process(hvd):
    check_every_optimizer(hvd, "plain")


@rank_test(n=2, door="torch", timeout=60)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_every_optimizer(hvd, variant):
    check_every_optimizer(hvd, variant)


def check_every_optimizer(hvd, variant):
    classes = optimizer_classes()
    assert {"SGD", "AdamW", "LBFGS", "Muon"} <= classes.keys()
    found = {name: difference(hvd, kind, variant) for name, kind in classes.items()}
    assert {name: trouble for name, trouble in found.items() if trouble} == {}


@rank_test(n=2, door="torch")
def test_an_optimizer_with_required_arguments(hvd):
    import torch

    class Scaled(torch.optim.SGD):
        def __init__(self, params, rate, *, factor):
            super().__init__(params, lr=rate * factor)

    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd.DistributedOptimizer(Scaled([weight], 0.5, factor=2.0))
    (weight * (hvd.rank() + 1)).sum().backward()
    optimizer.step()
    assert weight.tolist() == [-0.5] * 3
    assert type(optimizer).__name__ == "Scaled"
    assert isinstance(optimizer, Scaled)
