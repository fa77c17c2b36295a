"""Checkpoints of a training with PyTorch."""

import time

import pytest

from ranktest import rank_test, shared_folder


def make(hvd, seed, optimizer="adamw", schedule="multistep"):
    """A model that draws random numbers and keeps running means, and what trains it."""
    import torch
    from torch.optim import lr_scheduler as schedules

    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.4), torch.nn.ReLU(), torch.nn.Linear(16, 2)
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizers = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, amsgrad=True),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
        "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.05, max_iter=3),
    }
    optimizer = optimizers[optimizer](model.parameters())
    makers = {
        "multistep": lambda o: schedules.MultiStepLR(o, [2, 5]),
        "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0),
        "onecycle": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=20),
        "warmup": lambda o: schedules.SequentialLR(
            o, [schedules.LinearLR(o, total_iters=3), schedules.CosineAnnealingLR(o, 10)], [3]
        ),
        "lambda": lambda o: schedules.LambdaLR(o, lambda step: 0.9**step),
    }
    scheduler = makers[schedule](optimizer)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    torch.manual_seed(1000 * seed + hvd.rank())
    return model, optimizer, scheduler


def train(model, optimizer, scheduler, steps):
    import torch

    losses = []
    for _ in range(steps):
        data = torch.randn(8, 6)

        def closure(data=data):
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            loss = optimizer.step(closure)
        else:
            loss = closure()
            optimizer.step()
        plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        scheduler.step(*[1.0] * plateau)
        losses.append(loss.item())
    return losses


def everything(model, optimizer, scheduler):
    import torch

    state = [*model.state_dict().values(), optimizer.state_dict(), scheduler.state_dict(), torch.get_rng_state()]
    return repr([s.tolist() if isinstance(s, torch.Tensor) else s for s in state])


OPTIMIZERS = [("adamw", "multistep"), ("sgd", "plateau"), ("rmsprop", "onecycle"), ("sgd", "warmup"), ("adamw", "lambda"), ("lbfgs", "multistep")]


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize(("optimizer", "schedule"), OPTIMIZERS)
@pytest.mark.parametrize("background", [False, True])
def test_training_goes_on_bit_for_bit(hvd, optimizer, schedule, background):
    folder = shared_folder(hvd)
    model, optim, scheduler = make(hvd, 1, optimizer, schedule)
    named = {"model": model, "optimizer": optim, "scheduler": scheduler}
    when = hvd.checkpoint.When(signals=False)
    with hvd.checkpoint.Checkpointer(folder, when=when, **named) as checkpointer:
        train(model, optim, scheduler, 3)
        (checkpointer.async_save if background else checkpointer.save)()
        expected = train(model, optim, scheduler, 4), everything(model, optim, scheduler)
    model, optim, scheduler = make(hvd, 2, optimizer, schedule)
    named = {"model": model, "optimizer": optim, "scheduler": scheduler}
    with hvd.checkpoint.Checkpointer(folder, when=when, **named) as checkpointer:
        checkpointer.restore()
        assert (train(model, optim, scheduler, 4), everything(model, optim, scheduler)) == expected


@rank_test(n=[1, 2], door="torch")
def test_saves_in_the_background_hold_one_moment_of_a_training_that_goes_on(hvd):
    """Every save is checked against the weights at the moment it was asked for."""
    import numpy as np
    import torch

    from farandole.checkpoint import read

    folder = shared_folder(hvd)
    model = torch.nn.Linear(1500, 1500)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    when = hvd.checkpoint.When(signals=False)
    with hvd.checkpoint.Checkpointer(folder, model=model, optimizer=optimizer, when=when) as checkpointer:
        for turn in range(6):
            checkpointer.async_save()
            if turn % 2:
                time.sleep(0.3)  # the next one is read from where the weights are
            wanted = model.weight.detach().clone()
            optimizer.zero_grad()
            model(torch.ones(1, 1500)).square().mean().backward()
            optimizer.step()
            checkpointer.wait()
            if hvd.rank() == 0:
                assert np.array_equal(read(folder)["model"]["weight"], wanted.numpy())
            assert not torch.equal(wanted, model.weight)
    hvd.barrier()


@rank_test(n=[1, 2], door="torch")
def test_weights_changed_behind_the_optimizer_s_back_are_no_checkpoint(hvd):
    import torch

    from farandole.errors import CheckpointError

    folder = shared_folder(hvd)
    model = torch.nn.Linear(2000, 2000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    when = hvd.checkpoint.When(signals=False)
    with hvd.checkpoint.Checkpointer(folder, model=model, optimizer=optimizer, when=when) as checkpointer:
        run = checkpointer._background._run

        def late(*given):
            with torch.no_grad():
                model.weight.clamp_(0, 0.1)
            run(*given)

        checkpointer._background._run = late
        checkpointer.async_save()
        with pytest.raises(CheckpointError, match=r"model/weight was changed between async_save\(\) and"):
            checkpointer.wait()
        assert checkpointer.restore() is None


@rank_test(n=[1, 2], door="torch")
def test_gradients_on_their_way_are_not_lost(hvd):
    import torch

    from farandole.errors import CheckpointError

    folder = shared_folder(hvd)
    model = torch.nn.Linear(4, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), ksteps=1)
    when = hvd.checkpoint.When(steps=3, signals=False)
    with hvd.checkpoint.Checkpointer(folder, model=model, optimizer=optimizer, when=when) as checkpointer:

        def step():
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

        for _ in range(2):
            step()
            checkpointer.step()
        step()
        with pytest.raises(CheckpointError, match=r"call optimizer.drain\(\)"):
            checkpointer.step()
        optimizer.drain()
        checkpointer.save()


@rank_test(n=[1, 2], door="torch")
def test_a_checkpoint_of_another_model_says_which_arrays_differ(hvd):
    import torch

    from farandole.errors import CheckpointError

    folder = shared_folder(hvd)
    when = hvd.checkpoint.When(signals=False)

    def checkpointer(model):
        return hvd.checkpoint.Checkpointer(
            folder, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), when=when
        )

    with checkpointer(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))) as made:
        made.save()
    other = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1, bias=False).double())
    before = other[0].weight.tolist()
    with checkpointer(other) as found, pytest.raises(CheckpointError) as caught:
        found.restore()
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("00000001-step-0 is not of this script (seen by rank 0):")
    assert lines[1:] == [
        "  model: 0.weight is float32 [4, 3] in the checkpoint, float32 [5, 3] in the model",
        "  model: 0.bias is float32 [4] in the checkpoint, float32 [5] in the model",
        "  model: 1.weight is float32 [1, 4] in the checkpoint, float64 [1, 5] in the model",
        "  model: 1.bias is float32 [1] in the checkpoint, not in the model",
        "  optimizer: its groups have [4] parameters in the checkpoint, [3] in the optimizer",
    ]
    assert other[0].weight.tolist() == before, "nothing was loaded"


@rank_test(n=2, door="torch")
def test_scaler_generator_values_and_types_come_back(hvd):
    import torch

    folder = shared_folder(hvd)
    when = hvd.checkpoint.When(signals=False)
    types = [torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.bool, torch.int8, torch.float8_e4m3fn]

    class Buffers(torch.nn.Module):
        def __init__(self, value):
            super().__init__()
            for dtype in types:
                self.register_buffer(f"{dtype}".replace(".", "_"), torch.full((2, 3), value).to(dtype))
            self.register_buffer("strided", torch.full((4, 6), float(value))[:, ::2])

    def saved(value):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**value)
        generator = torch.Generator().manual_seed(value)
        return {"model": Buffers(value), "scaler": scaler, "history": {"loss": [value, float("nan")]}}, generator

    named, generator = saved(1)
    with hvd.checkpoint.Checkpointer(folder, when=when, own={"generator": generator}, **named) as checkpointer:
        checkpointer.save()
    expected = torch.rand(3, generator=generator)
    again, generator = saved(0)
    with hvd.checkpoint.Checkpointer(folder, when=when, own={"generator": generator}, **again) as checkpointer:
        checkpointer.restore()
    assert torch.equal(torch.rand(3, generator=generator), expected)
    assert again["scaler"].get_scale() == 2.0
    assert again["history"]["loss"][0] == 1
    for name, buffer in named["model"].state_dict().items():
        found = again["model"].state_dict()[name]
        assert found.dtype == buffer.dtype
        assert torch.equal(found.to(torch.complex64), buffer.to(torch.complex64)), name


@rank_test(n=1, door="torch")
def test_what_has_no_state_is_refused_with_the_way_out(hvd):
    from farandole.errors import SettingsError

    with pytest.raises(SettingsError, match=r"epoch is a int, which has no state_dict\(\).*epoch=\{'value': ...\}"):
        hvd.checkpoint.Checkpointer("never-made", epoch=3)
