"""Gradients of every size, type, layout and absence, as step() reads them, against plain torch.

Where gradients are small whole numbers every sum is exact, in any order and in every type: the comparison is bitwise.
"""

import contextlib
from itertools import pairwise

import pytest

from ranktest import rank_test

# Around the limits of the plan: packed, reduced where it lies (from 1 MiB), in several pieces (from 32 MiB).
PACKED_BYTES, DIRECT_BYTES, SPLIT_BYTES = 40, 1_200_004, 34_000_004
# Results go to a window from the same size on as gradients are reduced where they lie, so that both are tested.
WINDOW = {"FARANDOLE_RESULT_ALGORITHMS": "1048575=place,*=window"}
ROWS = 12


def parameter(*shape, dtype="float32"):
    import torch

    return torch.nn.Parameter(torch.zeros(shape, dtype=getattr(torch, dtype)))


def whole_numbers(like, step):
    """A different whole number for neighbours, so that a value in the wrong place shows."""
    import torch

    places = torch.arange(like.numel(), dtype=torch.int32) % 7 + step
    return places.reshape(like.shape).to(like.dtype)


def local_and_mean(hvd, like, step):
    """This rank's gradient, and the mean over the ranks; both are whole."""
    numbers = whole_numbers(like, step)
    mean = hvd.size() * (hvd.size() + 1) // 2
    return numbers * (hvd.rank() + 1) * hvd.size(), numbers * mean


def same_everywhere(hvd, tensors):
    return hvd.check_buffers_match([t.detach() for t in tensors]) == 0


def assert_steps_are_exact(hvd, parameters, give, steps=3):
    """Train with whole numbers; `give(p, gradient)` makes p's gradient."""
    import torch

    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
    expected = [p.detach().clone() for p in parameters]
    for step in range(steps):
        pairs = [local_and_mean(hvd, p, step) for p in parameters]
        for p, (local, _) in zip(parameters, pairs):
            give(p, local)
        optimizer.synchronize()
        for index, (p, (_, mean)) in enumerate(zip(parameters, pairs)):
            expected[index] -= mean
            assert torch.equal(p.grad, mean), f"gradient {index} {tuple(p.shape)} in step {step}"
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.zero_grad()
    assert all(torch.equal(p, e) for p, e in zip(parameters, expected))
    assert same_everywhere(hvd, parameters)


def through_backward(p, gradient):
    (p * gradient).sum().backward()


# Sizes, types, layouts


@rank_test(n=[1, 2, 3], door="torch", env=WINDOW, timeout=60)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_every_size_of_every_type(hvd, dtype):
    width = parameter(dtype=dtype).element_size()
    shapes = [(), (0,), (1,), (3, 0, 2), (7, 5)]
    shapes += [(nbytes // width,) for nbytes in (PACKED_BYTES, DIRECT_BYTES, SPLIT_BYTES)]
    shapes += [(2**20 // width,), (2**20 // width - 1,)]
    assert_steps_are_exact(hvd, [parameter(*shape, dtype=dtype) for shape in shapes], through_backward, steps=2)


@rank_test(n=[2, 3], door="torch", env=WINDOW)
def test_a_model_of_several_types(hvd):
    kinds = ["float32", "float64", "bfloat16", "float32", "float16", "float64"]
    parameters = [parameter(size, dtype=kind) for size in (5, 700_000) for kind in kinds]
    assert_steps_are_exact(hvd, parameters, through_backward)


@rank_test(n=[2, 3], door="torch", env=WINDOW, timeout=60)
def test_thousands_of_small_parameters(hvd):
    assert_steps_are_exact(hvd, [parameter(1 + i % 5) for i in range(4000)], through_backward, steps=2)


def odd_layouts():
    import torch

    channels_last = torch.zeros(512, 64, 3, 3).contiguous(memory_format=torch.channels_last)
    few_channels = torch.zeros(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    turned = [torch.zeros(700, 500).t(), torch.zeros(5, 3).t()]
    with_gaps = [torch.zeros(700, 1000)[:, ::2], torch.zeros(8, 6)[::2, ::3]]
    return [torch.nn.Parameter(t) for t in (channels_last, few_channels, *turned, *with_gaps)]


@rank_test(n=[1, 2, 3], door="torch", env=WINDOW)
def test_parameters_in_any_layout(hvd):
    assert_steps_are_exact(hvd, odd_layouts(), through_backward)


@rank_test(n=[1, 2, 3], door="torch", env=WINDOW)
def test_gradients_in_another_layout_than_their_parameter(hvd):
    def give_turned(p, gradient):
        p.grad = gradient.mT.contiguous().mT

    def give_apart(p, gradient):
        p.grad = gradient.repeat_interleave(2, dim=-1)[..., ::2]

    for give in (give_turned, give_apart):
        assert_steps_are_exact(hvd, [parameter(700, 500), parameter(5, 3)], give)


@rank_test(n=[2, 3], door="torch", env=WINDOW)
def test_parameters_whose_layout_changes_after_wrapping(hvd):
    """model.to(memory_format=...) once the optimizer exists, and on one rank only."""
    import torch

    parameters = [parameter(512, 64, 3, 3), parameter(4, 3, 2, 2), parameter(1024, 512, 1, 1)]
    changed = []

    def give(p, gradient):
        if hvd.rank() == 0 and len(changed) < len(parameters):
            p.data = p.data.contiguous(memory_format=torch.channels_last)
            changed.append(p)
        through_backward(p, gradient)

    assert_steps_are_exact(hvd, parameters, give)
    assert len(changed) == (3 if hvd.rank() == 0 else 0)


@rank_test(n=[1, 2], door="torch", env=WINDOW)
def test_a_parameter_whose_type_changes_after_wrapping_is_named(hvd):
    import torch

    weight = parameter(5)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("layer.bias", weight)])
    weight.data = weight.data.double()
    with pytest.raises(ValueError, match=r"gradient of layer\.bias is torch\.float64, it was torch\.float32"):
        weight.sum().backward()
    assert optimizer.param_groups


@rank_test(n=[1, 2], door="torch", env=WINDOW)
def test_gradients_with_a_graph_of_their_own(hvd):
    """backward(create_graph=True): what step() reads is reduced and holds no graph, however many steps there are."""
    import torch

    parameters = [parameter(5), parameter(300_000)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
    for _ in range(3):
        optimizer.zero_grad()
        sum(((p + hvd.rank() + 1) ** 2).sum() for p in parameters).backward(create_graph=True)
        optimizer.synchronize()
        assert not any(p.grad.requires_grad for p in parameters)
        with optimizer.skip_synchronize():
            optimizer.step()
    mean = (hvd.size() + 1) / 2  # p - 2 * (p + mean) = -p - 2 * mean, three times from 0
    assert all((p == -2 * mean).all() for p in parameters)


@rank_test(n=[2, 3], door="torch", env=WINDOW)
def test_an_expanded_gradient(hvd):
    import torch

    parameters = [parameter(700, 500), parameter(5, 3)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
    for p in parameters:
        p.grad = torch.tensor(float(hvd.rank())).expand(p.shape)
    optimizer.step()
    assert all(torch.equal(p, torch.full_like(p, -(hvd.size() - 1) / 2)) for p in parameters)


@rank_test(n=[1, 2, 3], door="torch", env=WINDOW)
def test_convolutions_in_channels_last_train_as_on_one_process(hvd):
    import torch
    from torch import nn

    def build():
        torch.manual_seed(3)
        layers = nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 256, 3), nn.Flatten(), nn.Linear(1024, 2)
        return nn.Sequential(*layers).double().to(memory_format=torch.channels_last)

    torch.manual_seed(5)
    images = torch.randn(ROWS, 3, 6, 6, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    plain, distributed = build(), build()
    assert distributed[2].weight.stride() != distributed[2].weight.contiguous().stride()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9) for model in (plain, distributed)]
    optimizers[1] = hvd.DistributedOptimizer(optimizers[1])
    for _ in range(3):
        batches = images, images[hvd.rank() :: hvd.size()]
        for model, optimizer, batch in zip((plain, distributed), optimizers, batches):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    # float64 rounding, in another order of summation
    for p, q in zip(distributed.parameters(), plain.parameters()):
        torch.testing.assert_close(p, q, rtol=0, atol=0 if hvd.size() == 1 else 1e-12)
    assert same_everywhere(hvd, distributed.parameters())


# Absent gradients


class Branches:
    """Four parameters, packed and large, that a step uses or not; rank r's loss has a factor r + 1."""

    def __init__(self):
        import torch

        sizes = {"small": 5, "large": 200_000, "other small": 3, "other large": 150_000}
        self.parameters = {
            name: torch.nn.Parameter(torch.linspace(-1, 1, size, dtype=torch.float64)) for name, size in sizes.items()
        }

    def loss(self, used, rank):
        return sum((self.parameters[name] ** 2).sum() * (rank + 1) for name in used)

    def optimizer(self, kind, **options):
        return kind(self.parameters.values(), **options)


def compare_branches(hvd, kind, options, uses, zero, steps, before_step=lambda branches, step: None):
    """`uses(rank, step)` names what a rank uses; plain torch has the mean of all ranks' losses."""
    import torch

    plain, distributed = Branches(), Branches()
    plain_optimizer = plain.optimizer(kind, **options)
    optimizer = hvd.DistributedOptimizer(distributed.optimizer(kind, **options))
    for step in range(steps):
        before_step(plain, step)
        before_step(distributed, step)
        zero(plain_optimizer)
        zero(optimizer)
        losses = [plain.loss(uses(rank, step), rank) for rank in range(hvd.size())]
        total = sum(losses) / hvd.size()
        if isinstance(total, torch.Tensor) and total.requires_grad:
            total.backward()
        mine = distributed.loss(uses(hvd.rank(), step), hvd.rank())
        if isinstance(mine, torch.Tensor) and mine.requires_grad:
            mine.backward()
        plain_optimizer.step()
        optimizer.step()
        for name, p in distributed.parameters.items():
            expected = plain.parameters[name]
            assert (p.grad is None) == (expected.grad is None), f"{name} in step {step}"
            # float64 rounding: the mean of 3 ranks' values is rounded, the gradient of the mean loss otherwise
            torch.testing.assert_close(p, expected, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
    assert same_everywhere(hvd, distributed.parameters.values())


EVERYTHING = ("small", "large", "other small", "other large")
DECAYING = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}


@rank_test(n=[1, 2, 3], door="torch", env=WINDOW)
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_gradients_that_some_or_all_ranks_lack(hvd, optimizer, set_to_none):
    """What no rank has made stays None: momentum and weight decay do what they do on one process."""
    import torch

    def uses(rank, step):
        if step == 2:  # nobody uses two of them
            return EVERYTHING[:2]
        if step == 3:  # nobody uses anything
            return ()
        one_lacks_two = step in (1, 5) and rank == 0
        return EVERYTHING[2:] if one_lacks_two else EVERYTHING

    options = DECAYING if optimizer == "SGD" else {"lr": 0.01, "weight_decay": 0.1}
    kind = getattr(torch.optim, optimizer)
    compare_branches(hvd, kind, options, uses, lambda o: o.zero_grad(set_to_none=set_to_none), steps=7)


@rank_test(n=[1, 2, 3], door="torch", env=WINDOW)
def test_parameters_that_no_step_ever_uses(hvd):
    import torch

    zero = torch.optim.Optimizer.zero_grad
    compare_branches(hvd, torch.optim.SGD, DECAYING, lambda rank, step: EVERYTHING[:2], zero, steps=3)


@rank_test(n=[1, 2, 3], door="torch", env=WINDOW)
def test_gradients_that_are_never_zeroed_add_up(hvd):
    import torch

    def uses(rank, step):
        return EVERYTHING[step % 2 : 3]

    compare_branches(hvd, torch.optim.SGD, {"lr": 1e-3}, uses, lambda o: None, steps=5)


@rank_test(n=[1, 2, 3], door="torch", env=WINDOW)
def test_requires_grad_switched_off_and_on(hvd):
    import torch

    def freeze(branches, step):
        for name in ("large", "small"):
            branches.parameters[name].requires_grad_(step not in (2, 3))
        for name in ("other large", "other small"):  # these begin frozen
            branches.parameters[name].requires_grad_(step >= 1)

    zero = torch.optim.Optimizer.zero_grad
    uses = lambda rank, step: EVERYTHING  # noqa: E731
    compare_branches(hvd, torch.optim.SGD, DECAYING, uses, zero, steps=6, before_step=freeze)


@rank_test(n=[2, 3], door="torch", env=WINDOW)
def test_parameters_that_begin_frozen_overlap_once_they_train(hvd):
    """A hook is there from the step after they were switched on: the gradient is handed over in backward."""
    import torch

    weight = torch.nn.Parameter(torch.ones(5), requires_grad=False)
    other = torch.nn.Parameter(torch.ones(5))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight, other], lr=1.0))
    other.sum().backward()
    optimizer.step()
    weight.requires_grad_()
    for _ in range(2):
        optimizer.zero_grad()
        (weight.sum() * hvd.rank()).backward()
        optimizer.step()
    (weight.sum() * hvd.rank()).backward()
    with pytest.raises(AssertionError, match="being reduced"):
        optimizer.zero_grad()
    optimizer.step()
    assert weight.tolist() == [1 - 4 * (hvd.size() - 1) / 2] * 5


# Not a number


@rank_test(n=[2, 3], door="torch", env=WINDOW)
def test_not_a_number_and_infinity_reach_every_rank(hvd):
    import torch

    parameters = [parameter(6), parameter(300_000)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
    last = hvd.rank() == hvd.size() - 1
    for p in parameters:
        p.grad = torch.ones_like(p)
        if last:
            p.grad[1], p.grad[-1] = float("nan"), float("inf")
    optimizer.step()
    for p in parameters:
        values = p.detach()
        assert values[1].isnan()
        assert values[-1] == -float("inf")
        assert values[0] == values[2] == -1
        assert values.isfinite().sum() == p.numel() - 2
    optimizer.zero_grad()
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert all(p.detach()[0] == -2 for p in parameters)


# Gradients changed in place between synchronize() and step()

CHANGES = {
    "in place": lambda g: g.mul_(3.0).add_(1.0),
    "through data": lambda g: g.data.mul_(3.0).add_(1.0),
    "through numpy": lambda g: g.numpy().__iadd__(5.0),
    "one element": lambda g: g.view(-1)[-1].add_(5.0),
    "zeroed": lambda g: g.zero_(),
}


@rank_test(n=[1, 2, 3], door="torch", env=WINDOW, timeout=60)
@pytest.mark.parametrize("change", CHANGES)
def test_a_rank_that_changes_its_gradients_changes_only_its_own(hvd, change):
    """Neither the neighbours nor the next step see it, on whatever rank and in whatever step it happens."""
    assert_changes_stay_local(hvd, CHANGES[change])


def assert_changes_stay_local(hvd, change):
    import torch

    parameters = [parameter(5), parameter(300_000), parameter(700, 500)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
    expected = [p.detach().clone() for p in parameters]
    culprits = [0, 0, None, hvd.size() - 1, 0, None, None, 0]
    for step, culprit in enumerate(culprits):
        pairs = [local_and_mean(hvd, p, step) for p in parameters]
        optimizer.zero_grad()
        for p, (local, _) in zip(parameters, pairs):
            through_backward(p, local)
        optimizer.synchronize()
        means = [mean for _, mean in pairs]
        hvd.barrier()
        if hvd.rank() == culprit:
            for p, mean in zip(parameters, means):
                change(p.grad)
                change(mean)
        hvd.barrier()
        for index, (p, mean) in enumerate(zip(parameters, means)):
            assert torch.equal(p.grad, mean), f"gradient {index} in step {step}"
            expected[index] -= mean
        with optimizer.skip_synchronize():
            optimizer.step()
        assert all(torch.equal(p, e) for p, e in zip(parameters, expected)), f"step {step}"


@rank_test(n=[2, 3], door="torch", env=WINDOW)
def test_changed_gradients_that_are_kept_add_up_from_what_they_were_changed_to(hvd):
    """Without zero_grad(), as on one process: each rank adds its next gradient to its own version."""
    import torch

    parameters = [parameter(5), parameter(300_000)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0))
    values = [float(r) for r in range(hvd.size())]  # what each rank has in .grad
    for factor in (2.0, 3.0, 1.0):
        for p in parameters:
            (p * (hvd.rank() + 1)).sum().backward()
        optimizer.synchronize()
        mean = sum(v + r + 1 for r, v in enumerate(values)) / hvd.size() if factor != 2.0 else (hvd.size() + 1) / 2
        for p in parameters:
            torch.testing.assert_close(p.grad, torch.full_like(p, mean), rtol=1e-6, atol=0)
            if hvd.rank() == 0:
                p.grad.mul_(factor)
        values = [mean * factor, *[mean] * (hvd.size() - 1)]
        with optimizer.skip_synchronize():
            optimizer.step()


# Other ways than the usual one


@contextlib.contextmanager
def without(hvd, what):
    """Make plans as if something were not to be had; gives the exchange they should use and where results go."""
    import os
    from unittest.mock import patch

    from farandole.comm.node.shared import SharingUnavailable

    on_middle_node = hvd.rank() == 1
    alone = on_middle_node or hvd.size() == 2
    variables, expected = {
        "room for results": ({}, ("direct", "none")),
        "reading neighbours": ({"FARANDOLE_NODE_EXCHANGE": "window"}, ("window", "none")),
        "shared memory": ({"FARANDOLE_NODE_EXCHANGE": "none"}, ("mpi", "none")),
        "a common node": (
            {"FARANDOLE_NODE": "middle" if on_middle_node else "ends"},
            ("mpi", "none") if alone else ("direct", "shared"),
        ),
    }[what]
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, variables))
        if what == "room for results":
            no_room = SharingUnavailable("no room")
            stack.enter_context(patch("farandole.comm.gradients.results.ResultWindow", side_effect=no_room))
        yield expected


@pytest.mark.more
@rank_test(n=[2, 3], door="torch", env=WINDOW, timeout=60)
@pytest.mark.parametrize("what", ["room for results", "reading neighbours", "shared memory", "a common node"])
def test_the_same_without(hvd, what):
    import torch

    def uses(rank, step):
        return EVERYTHING[2:] if rank == step else EVERYTHING[: 4 - step]

    with without(hvd, what) as expected:
        shapes = (), (0,), (5,), (300_000,)
        parameters = [*(parameter(*shape) for shape in shapes), *odd_layouts()]
        assert_steps_are_exact(hvd, parameters, through_backward)
        for set_to_none in (True, False):
            zero = lambda o, s=set_to_none: o.zero_grad(set_to_none=s)  # noqa: E731
            compare_branches(hvd, torch.optim.SGD, DECAYING, uses, zero, steps=4)
        for change in CHANGES.values():
            assert_changes_stay_local(hvd, change)
        plan = hvd.describe()["plans"][-1]
        assert (plan["exchange"], plan["window"]) == expected


def test_the_limits_these_sizes_stand_for():
    from farandole.comm.gradients.cutting import DIRECT_BYTES as direct
    from farandole.comm.gradients.cutting import PIECE_BYTES
    from farandole.comm.gradients.interface import BUCKET_BYTES

    limits = [PACKED_BYTES, direct, DIRECT_BYTES, BUCKET_BYTES, PIECE_BYTES, SPLIT_BYTES]
    assert all(a < b for a, b in pairwise(limits))


@rank_test(n=[2, 3], door="torch", timeout=60)
def test_results_go_to_a_window_from_some_size_or_number_of_ranks_on(hvd):
    """As shipped: a gradient of 34 MB has its result there, one of 1.2 MB is changed where it lies by two ranks."""
    assert_steps_are_exact(hvd, [parameter(DIRECT_BYTES // 4)], through_backward)
    assert hvd.describe()["plans"][-1]["window"] == ("none" if hvd.size() == 2 else "shared")
    assert_steps_are_exact(hvd, [parameter(DIRECT_BYTES // 4), parameter(SPLIT_BYTES // 4)], through_backward)
    assert hvd.describe()["plans"][-1]["window"] == "shared"
    for change in CHANGES.values():
        assert_changes_stay_local(hvd, change)
