"""Gradients one step late (`ksteps`): N ranks do what one process does with averages of the step before."""

import pytest

from ranktest import rank_test

STEPS = 7


def make_model(torch):
    torch.manual_seed(11)
    layers = [torch.nn.Linear(600, 500), torch.nn.Tanh(), torch.nn.Linear(500, 30), torch.nn.Linear(30, 3)]
    x, y = torch.randn(STEPS, 6, 600).double(), torch.randn(STEPS, 6, 3).double()
    return torch.nn.Sequential(*layers).double(), x, y


OPTIMIZERS = {
    "sgd": lambda torch, p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=1e-3),
    "adam": lambda torch, p: torch.optim.Adam(p, lr=1e-3),
}


def is_late(ksteps, step):
    return step >= ksteps if ksteps > 0 else step < -ksteps


def reference(optimizer, ksteps, drain):
    """One process, whole batches, the gradients of the step before where they come late."""
    import torch

    model, x, y = make_model(torch)
    stepper = OPTIMIZERS[optimizer](torch, model.parameters())
    parameters, held = list(model.parameters()), None

    def apply(gradients):
        for p, g in zip(parameters, gradients):
            p.grad = g
        stepper.step()

    for step in range(STEPS):
        now = torch.autograd.grad(torch.nn.functional.mse_loss(model(x[step]), y[step]), parameters)
        if not is_late(ksteps, step):
            apply(now)
            continue
        if held is not None:
            apply(held)
        held = now
        if not is_late(ksteps, step + 1):
            apply(held)
            held = None
    if drain and held is not None:
        apply(held)
    return model


def train(hvd, optimizer, ksteps, drain, *, to_none=True, compression=None):
    import torch

    model, x, y = make_model(torch)
    how = {} if compression is None else {"compression": compression}
    stepper = hvd.DistributedOptimizer(
        OPTIMIZERS[optimizer](torch, model.parameters()), model.named_parameters(), ksteps=ksteps, **how
    )
    mine = slice(hvd.rank() * 6 // hvd.size(), (hvd.rank() + 1) * 6 // hvd.size())
    for step in range(STEPS):
        stepper.zero_grad(set_to_none=to_none)
        torch.nn.functional.mse_loss(model(x[step, mine]), y[step, mine]).backward()
        stepper.step()
    if drain:
        stepper.drain()
    return model


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("ksteps", "drain"), [(2, True), (2, False), (-3, True), (STEPS, True), (-STEPS, False)])
def test_late_gradients_are_those_of_the_step_before(hvd, optimizer, ksteps, drain):
    """Tolerance: averages of 2 or 3 ranks round differently from the mean over the whole batch, and Adam makes much of it."""
    import torch

    found, expected = train(hvd, optimizer, ksteps, drain), reference(optimizer, ksteps, drain)
    for a, b in zip(found.parameters(), expected.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)
    assert hvd.check_buffers_match(list(found.parameters())) == 0


@rank_test(n=[2], door="torch")
@pytest.mark.parametrize("ksteps", [2, -3])
def test_kept_gradient_tensors_change_nothing(hvd, ksteps):
    dropped, kept = (train(hvd, "sgd", ksteps, True, to_none=flag) for flag in (True, False))
    assert all((a == b).all() for a, b in zip(dropped.parameters(), kept.parameters()))


@rank_test(n=[2], door="torch")
def test_with_sixteen_bits_on_the_way(hvd):
    import torch

    found = train(hvd, "sgd", 1, True, compression=hvd.Compression.bf16)
    for a, b in zip(found.parameters(), reference("sgd", 1, True).parameters()):
        torch.testing.assert_close(a, b, rtol=0.05, atol=2e-3)


@rank_test(n=[1, 2], door="torch")
def test_late_gradients_can_be_clipped(hvd):
    import torch

    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), ksteps=1)
    for _ in range(3):
        optimizer.zero_grad()
        (10 * model(torch.ones(1, 4)).sum()).backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer.drain()
    # Steps 0, 1 (none arrives), 2 (that of 1), and the drained one, which nobody clips.
    torch.testing.assert_close(model.weight, torch.full((1, 4), -0.5 - 0.5 - 10.0))


@rank_test(n=[2], door="torch")
def test_what_cannot_come_late_is_refused(hvd):
    import torch

    parameters = list(torch.nn.Linear(2, 2).parameters())
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), ksteps=-1)
    with pytest.raises(ValueError, match="ksteps must be 0"):
        optimizer.step(lambda: parameters[0].sum())
    with pytest.raises(ValueError, match="Adasum"):
        hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1), op=hvd.Adasum, ksteps=1)


@rank_test(n=2, door="torch")
def test_ranks_must_agree_on_when_gradients_come_late(hvd):
    import torch

    with pytest.raises(RuntimeError, match=r"rank 0 has .*ksteps=1,.*rank 1 has .*ksteps=2,"):
        hvd.DistributedOptimizer(torch.optim.SGD([torch.zeros(3).requires_grad_()], lr=1.0), ksteps=1 + hvd.rank())


@rank_test(n=2, door="torch")
def test_gradients_of_two_passes_come_late_together(hvd):
    import torch

    weight = torch.zeros(3).requires_grad_()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), ksteps=-4, backward_passes_per_step=2)
    for step in range(3):
        for _ in range(2):
            (weight * (hvd.rank() + 1)).sum().backward()
        optimizer.step()
        assert weight.tolist() == [-3.0 * step] * 3
    optimizer.drain()
    assert weight.tolist() == [-9.0] * 3
