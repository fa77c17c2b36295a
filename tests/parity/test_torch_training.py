"""Training loops as people write them: each runs on one process with plain torch, and on N ranks with shards.

The model is float64. One rank gives plain torch's bits, all ranks have the same bits, and N ranks come within
`TOLERANCE` of plain torch: the mean of the shards' means adds the same numbers in another order.
"""

import contextlib

import pytest

from ranktest import rank_test

TOLERANCE = 1e-11
STEPS = 4
ROWS = 72  # over 1, 2 or 3 ranks and 2, 3 or 4 passes without a remainder


class Data:
    """(steps, rows, features), and this process's rows of each step."""

    def __init__(self, rows=slice(None)):
        import torch

        generator = torch.Generator().manual_seed(2)
        self.inputs = torch.randn(STEPS, ROWS, 6, generator=generator, dtype=torch.float64)[:, rows]
        self.targets = torch.randn(STEPS, ROWS, 1, generator=generator, dtype=torch.float64)[:, rows]

    def loss(self, model, step, part=slice(None)):
        return (model(self.inputs[step, part]) - self.targets[step, part]).square().mean()


def build(*extra):
    """A matrix that is reduced where it lies (1.2 MB) and packed parameters."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    layers = nn.Linear(6, 1024), nn.Tanh(), nn.Linear(1024, 150), nn.Tanh(), *extra, nn.Linear(150, 1)
    return nn.Sequential(*layers).double()


def momentum(model):
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)


def adam(model):
    import torch

    return torch.optim.Adam(model.parameters(), lr=0.01)


def compare(hvd, loop, *, make=momentum, build=build, tolerance=TOLERANCE, **options):
    """`loop(model, optimizer, data)` on one process and on the ranks; what it returned on both."""
    import torch

    plain = build()
    expected = loop(plain, make(plain), Data())
    model = build()
    optimizer = hvd.DistributedOptimizer(make(model), model.named_parameters(), **options)
    found = loop(model, optimizer, Data(slice(hvd.rank(), ROWS, hvd.size())))
    start = build().state_dict()
    assert any(not torch.equal(value, start[name]) for name, value in model.state_dict().items()), "nothing trained"
    assert hvd.check_buffers_match(list(model.state_dict().values())) == 0
    for (name, value), wanted in zip(model.state_dict().items(), plain.state_dict().values()):
        limit = 0 if hvd.size() == 1 else tolerance
        torch.testing.assert_close(value, wanted, rtol=0, atol=limit, msg=lambda m, n=name: f"{n}: {m}")
    return found, expected


def synchronized(optimizer):
    """The pattern for who needs reduced gradients before step(); plain torch has them at once."""
    if not hasattr(optimizer, "synchronize"):
        return contextlib.nullcontext()
    optimizer.synchronize()
    return optimizer.skip_synchronize()


# Accumulation


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("passes", [2, 4])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulation(hvd, passes, set_to_none):
    def loop(model, optimizer, data):
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=set_to_none)
            for part in range(passes):
                (data.loss(model, step, slice(part, None, passes)) / passes).backward()
            optimizer.step()

    compare(hvd, loop, backward_passes_per_step=passes)


@rank_test(n=[1, 2, 3], door="torch")
def test_a_number_of_passes_that_changes(hvd):
    def loop(model, optimizer, data):
        for step, passes in enumerate([2, 1, 3, 1]):
            if hasattr(optimizer, "synchronize"):
                optimizer.set_backward_passes_per_step(passes)
            optimizer.zero_grad()
            for part in range(passes):
                data.loss(model, step, slice(part, None, passes)).backward()
            optimizer.step()

    compare(hvd, loop)


@rank_test(n=[1, 2, 3], door="torch")
def test_a_step_before_all_passes_are_done(hvd):
    """The last batches of an epoch are often fewer than the passes."""

    def loop(model, optimizer, data):
        for step, passes in enumerate([3, 1, 2, 3]):
            optimizer.zero_grad()
            for part in range(passes):
                data.loss(model, step, slice(part, None, passes)).backward()
            optimizer.step()

    compare(hvd, loop, backward_passes_per_step=3)


@rank_test(n=[2, 3], door="torch")
def test_ranks_with_different_numbers_of_passes(hvd):
    def loop(model, optimizer, data):
        for step in range(STEPS):
            passes = 1 if hvd.rank() == step % hvd.size() else 3
            optimizer.zero_grad()
            for part in range(passes):
                (data.loss(model, step, slice(part, None, passes)) / passes).backward()
            optimizer.step()

    compare(hvd, loop, backward_passes_per_step=3)


# Weights that are used twice, checkpoints, compiled models


def build_tied():
    from torch import nn

    model = build(nn.Linear(150, 150), nn.Tanh(), nn.Linear(150, 150))
    model[6].weight = model[4].weight
    return model


@rank_test(n=[1, 2, 3], door="torch")
def test_tied_weights(hvd):
    def loop(model, optimizer, data):
        for step in range(STEPS):
            optimizer.zero_grad()
            data.loss(model, step).backward()
            optimizer.step()

    compare(hvd, loop, build=build_tied)


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing(hvd, use_reentrant):
    from torch.utils.checkpoint import checkpoint_sequential

    def loop(model, optimizer, data):
        for step in range(STEPS):
            optimizer.zero_grad()
            inputs = data.inputs[step].requires_grad_()  # reentrant checkpoints need an input that wants a gradient
            output = checkpoint_sequential(model, 3, inputs, use_reentrant=use_reentrant)
            (output - data.targets[step]).square().mean().backward()
            optimizer.step()

    compare(hvd, loop)


@rank_test(n=[1, 2, 3], door="torch")
def test_a_model_in_eval_and_evaluation_during_a_step(hvd):
    import torch
    from torch import nn

    def loop(model, optimizer, data):
        losses = []
        model.eval()
        for step in range(STEPS):
            optimizer.zero_grad()
            data.loss(model, step).backward()
            with torch.inference_mode():
                losses.append(Data().loss(model, step).item())
            optimizer.step()
        return losses

    def build_with_modes():
        return build(nn.BatchNorm1d(150), nn.Dropout(0.5))

    found, expected = compare(hvd, loop, build=build_with_modes)
    assert found == pytest.approx(expected, abs=TOLERANCE)


# Closures


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("as_number", [False, True])
def test_a_closure_s_loss_is_that_of_the_whole_batch(hvd, as_number):
    import torch

    def loop(model, optimizer, data):
        losses = []
        for step in range(STEPS):

            def closure(step=step):
                optimizer.zero_grad()
                loss = data.loss(model, step)
                loss.backward()
                return loss.item() if as_number else loss

            losses.append(torch.as_tensor(optimizer.step(closure)).item())
        return losses

    found, expected = compare(hvd, loop)
    assert found == pytest.approx(expected, abs=TOLERANCE)


def lbfgs(model):
    import torch

    return torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("as_number", [False, True])
@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_a_line_search_goes_the_same_way_on_every_rank(hvd, op, as_number):
    """Its path depends on the loss: that of the reduced gradient, whichever the reduction is."""

    def loop(model, optimizer, data):
        ranks_in_loss = hvd.size() if op == "Sum" and hasattr(optimizer, "synchronize") else 1
        evaluations = 0

        def closure():
            nonlocal evaluations
            evaluations += 1
            optimizer.zero_grad()
            loss = data.loss(model, 0) / ranks_in_loss
            loss.backward()
            return loss.item() if as_number else loss

        for _ in range(2):
            optimizer.step(closure)
        return evaluations

    # Curvature estimates enlarge rounding.
    found, expected = compare(hvd, loop, make=lbfgs, tolerance=1e-7, op=getattr(hvd, op))
    assert found == expected > 2


# Clipping


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_clipping(hvd, optimizer):
    import torch

    def loop(model, optimizer, data):
        norms = []
        for step in range(STEPS):
            optimizer.zero_grad()
            data.loss(model, step).backward()
            with synchronized(optimizer):
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01).item())
                optimizer.step()
        return norms

    found, expected = compare(hvd, loop, make={"momentum": momentum, "adam": adam}[optimizer])
    assert found == pytest.approx(expected, abs=TOLERANCE)
    assert min(expected) > 0.01


@rank_test(n=[1, 2, 3], door="torch")
def test_clipping_of_gradients_that_are_kept_between_steps(hvd):
    import torch

    def loop(model, optimizer, data):
        for step in range(STEPS):
            optimizer.zero_grad(set_to_none=False)
            data.loss(model, step).backward()
            with synchronized(optimizer):
                torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)
                optimizer.step()

    compare(hvd, loop)


# Mixed precision's scaler


def scaled_loop(hvd, overflow, ask):
    """Training under a scaler; in the steps of `overflow` one rank's loss is infinite."""
    import torch

    def loop(model, optimizer, data):
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)
        is_plain = not hasattr(optimizer, "synchronize")
        scales = []
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = data.loss(model, step)
            if step in overflow and (is_plain or hvd.rank() == hvd.size() - 1):
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if ask:
                with synchronized(optimizer):
                    scaler.unscale_(optimizer)
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    scaler.step(optimizer)
            else:
                scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    return loop


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("ask", [False, True])
@pytest.mark.parametrize("overflow", [(), (1,), (0, 2)])
def test_an_overflow_on_one_rank_skips_the_step_on_all(hvd, overflow, ask):
    found, expected = compare(hvd, scaled_loop(hvd, overflow, ask), make=adam)
    assert found == expected
    assert (min(found) < 16) == bool(overflow)


def fused_adam(model):
    import torch

    return torch.optim.Adam(model.parameters(), lr=0.01, fused=True)


@rank_test(n=[1, 2, 3], door="torch")
def test_an_optimizer_that_unscales_by_itself(hvd):
    """Fused optimizers get scale and overflow from the scaler instead of unscaled gradients."""
    found, expected = compare(hvd, scaled_loop(hvd, (1,), False), make=fused_adam)
    assert found == expected


# DataLoader workers


@rank_test(n=2, door="torch", timeout=120)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_dataloader_workers(hvd, start):
    """Workers that come and go during training, forked while gradients' threads and windows exist."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    def loop(model, optimizer, data):
        is_plain = not hasattr(optimizer, "synchronize")
        rows = TensorDataset(Data().inputs.flatten(0, 1), Data().targets.flatten(0, 1))
        sampler = None if is_plain else hvd.shard(rows, shuffle=False)
        workers = {"num_workers": 0} if is_plain else {"num_workers": 1, "multiprocessing_context": start}
        batch = len(rows) // 2 // (1 if is_plain else hvd.size())
        loader = DataLoader(rows, batch, sampler=sampler, **workers)
        for _ in range(2 if start == "fork" else 1):  # a spawned worker imports torch again
            for inputs, targets in loader:
                optimizer.zero_grad()
                (model(inputs) - targets).square().mean().backward()
                optimizer.step()

    with torch.random.fork_rng():
        compare(hvd, loop)
