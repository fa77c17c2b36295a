"""What an optimizer carries through DistributedOptimizer: state, hyper-parameters, hooks, schedulers, checkpoints."""

import copy
import io
import warnings

import pytest

from ranktest import rank_test

SIZES = 5, 300_000  # packed; reduced where it lies


def build():
    import torch

    torch.manual_seed(4)
    return [torch.nn.Parameter(torch.randn(size)) for size in SIZES]


def momentum(parameters):
    import torch

    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def step(optimizer, parameters, factor=1.0):
    """All ranks have the same gradient: N ranks do what one does, to the bit, where N is a power of two."""
    parameters = list(parameters)
    optimizer.zero_grad()
    sum((p**2).sum() for p in parameters).mul(factor).backward()
    optimizer.step()


def equal(left, right):
    import torch

    return all(torch.equal(a, b) for a, b in zip(left, right))


@rank_test(n=2, door="torch")
def test_loaded_state_and_groups_are_kept(hvd):
    plain, wrapped = build(), build()
    reference, optimizer = momentum(plain), momentum(wrapped)
    for _ in range(2):
        step(reference, plain)
    for group in reference.param_groups:
        group["lr"] = 0.03
    for p, trained in zip(wrapped, plain):
        p.data.copy_(trained)
    optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
    optimizer = hvd.DistributedOptimizer(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.03
    assert optimizer.state[wrapped[0]]["momentum_buffer"] is not None
    for _ in range(2):
        step(reference, plain)
        step(optimizer, wrapped)
    assert equal(plain, wrapped)


@rank_test(n=2, door="torch")
@pytest.mark.parametrize("kind", ["SGD", "Adam", "Adagrad"])
def test_a_checkpoint_continues_with_the_same_bits(hvd, kind):
    """Saved from a distributed optimizer; loaded into another, before or after wrapping, and into a plain one."""
    import torch

    def make(parameters):
        options = {"momentum": 0.9} if kind == "SGD" else {}
        return getattr(torch.optim, kind)(parameters, lr=0.01, **options)

    def restored(wrap_first, wrap_last):
        parameters = build()
        for p, value in zip(parameters, values):
            p.data.copy_(value)
        optimizer = make(parameters)
        optimizer = hvd.DistributedOptimizer(optimizer) if wrap_first else optimizer
        file.seek(0)
        optimizer.load_state_dict(torch.load(file))
        optimizer = hvd.DistributedOptimizer(optimizer) if wrap_last else optimizer
        for _ in range(2):
            step(optimizer, parameters)
        return parameters

    trained = build()
    optimizer = hvd.DistributedOptimizer(make(trained))
    for _ in range(2):
        step(optimizer, trained)
    values = [p.detach().clone() for p in trained]
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    for _ in range(2):
        step(optimizer, trained)
    for wrap_first, wrap_last in ((True, False), (False, True), (False, False)):
        assert equal(restored(wrap_first, wrap_last), trained), (wrap_first, wrap_last)


@rank_test(n=2, door="torch")
def test_hooks_run_once_a_step(hvd):
    calls = []
    parameters = build()
    optimizer = momentum(parameters)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer = hvd.DistributedOptimizer(optimizer)

    def after(*_):
        calls.append("after")

    optimizer.register_step_post_hook(after)
    step(optimizer, parameters)
    optimizer.load_state_dict(optimizer.state_dict())
    step(optimizer, parameters)
    optimizer.step(lambda: None)
    assert calls == ["before", "after"] * 3


@rank_test(n=2, door="torch")
def test_a_hook_before_step_sees_reduced_gradients(hvd):
    seen = []
    parameters = build()
    optimizer = hvd.DistributedOptimizer(momentum(parameters))
    optimizer.register_step_pre_hook(lambda *_: seen.extend(p.grad[0].item() for p in parameters))
    sum((p * hvd.rank()).sum() for p in parameters).backward()
    optimizer.step()
    assert seen == [0.5, 0.5]


@rank_test(n=2, door="torch")
def test_a_model_can_be_copied_and_saved_while_it_trains(hvd):
    """An average of weights is a copy; it does not train, and a step on it reaches nobody."""
    import torch

    model = torch.nn.Linear(600, 500)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(momentum(model.parameters()))
    step(optimizer, model.parameters())
    average, file = copy.deepcopy(model), io.BytesIO()
    torch.save(model, file)
    saved = [p.detach().clone() for p in model.parameters()]
    average(torch.ones(1, 600)).sum().backward()
    step(optimizer, model.parameters())
    file.seek(0)
    assert equal(average.parameters(), saved)
    assert equal(torch.load(file, weights_only=False).parameters(), saved)
    assert not equal(model.parameters(), saved)


# Schedulers


def scheduler_of(optimizer):
    import torch

    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)


@rank_test(n=2, door="torch")
@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("then", ["nothing", "broadcast", "load"])
def test_schedulers_made_before_and_after_wrapping(hvd, made, then):
    """They stay attached when the state is broadcast or loaded, on every rank, and do not warn."""
    plain, wrapped = build(), build()
    reference, optimizer = momentum(plain), momentum(wrapped)
    reference_scheduler = scheduler_of(reference)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = scheduler_of(optimizer) if made == "before" else None
        optimizer = hvd.DistributedOptimizer(optimizer)
        scheduler = scheduler or scheduler_of(optimizer)
        if then == "broadcast":
            hvd.broadcast_optimizer_state(optimizer, root_rank=1)
        elif then == "load":
            optimizer.load_state_dict(optimizer.state_dict())
        for _ in range(3):
            step(reference, plain)
            step(optimizer, wrapped)
            reference_scheduler.step()
            scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.1 / 8
    assert scheduler.get_last_lr() == [0.1 / 8]
    assert equal(plain, wrapped)


@rank_test(n=2, door="torch")
def test_a_scheduler_made_before_leaves_the_gradients_reduced(hvd):
    """Schedulers put a step() of their own on the optimizer: ours must stay behind it."""
    parameters = build()
    optimizer = momentum(parameters)
    scheduler = scheduler_of(optimizer)
    optimizer = hvd.DistributedOptimizer(optimizer)
    for _ in range(2):
        step(optimizer, parameters, factor=float(hvd.rank()))
        scheduler.step()
    assert hvd.check_buffers_match([p.detach() for p in parameters]) == 0
    assert not equal(parameters, build())


@rank_test(n=2, door="torch")
def test_zero_grad_keeps_or_drops_gradients_as_asked(hvd):
    parameters = build()
    optimizer = hvd.DistributedOptimizer(momentum(parameters))
    for set_to_none in (True, False, None):
        sum(p.sum() for p in parameters).backward()
        optimizer.step()
        arguments = {} if set_to_none is None else {"set_to_none": set_to_none}
        optimizer.zero_grad(**arguments)
        if set_to_none is False:
            assert all(p.grad.count_nonzero() == 0 for p in parameters)
        else:
            assert all(p.grad is None for p in parameters)
