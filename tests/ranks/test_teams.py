"""Teams: several optimizers that reduce independently, each with its threads and its statistics."""

import contextlib
import io
import re
import threading
import time

import pytest

from ranktest import rank_test

SMALL, LARGE = 5, 300_000  # packed; reduced where it lies


def team_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("farandole-team")}


def weights(*sizes):
    import torch

    return [torch.nn.Parameter(torch.zeros(size)) for size in sizes]


def sgd(hvd, parameters, **options):
    import torch

    return hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), **options)


def train(hvd, optimizer, parameters, steps):
    """Rank r's gradient is r + 1 everywhere."""
    for _ in range(steps):
        optimizer.zero_grad()
        sum((p * (hvd.rank() + 1)).sum() for p in parameters).backward()
        optimizer.step()


def mean(hvd):
    return (hvd.size() + 1) / 2


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("threads", [0, 1, 2, 5])
def test_any_number_of_threads(hvd, threads):
    before = team_threads()
    parameters = weights(*[SMALL, LARGE] * 6)
    optimizer = sgd(hvd, parameters, team=hvd.Team(threads=threads))
    assert len(team_threads() - before) == (threads if hvd.size() > 1 else 0)
    train(hvd, optimizer, parameters, steps=3)
    assert all((p == -3 * mean(hvd)).all() for p in parameters)


@rank_test(n=1, door="torch")
def test_settings_that_cannot_work(hvd):
    for wrong in ({"threads": -1}, {"stats_every": -3}):
        with pytest.raises(ValueError, match="must be 0 or more"):
            hvd.Team(**wrong)


# Two models


def gan():
    """A generator and a critic, each with a matrix that is reduced where it lies (1.1 MB)."""
    import torch
    from torch import nn

    torch.manual_seed(8)
    generator = nn.Sequential(nn.Linear(4, 400), nn.Tanh(), nn.Linear(400, 350), nn.Linear(350, 3)).double()
    critic = nn.Sequential(nn.Linear(3, 350), nn.Tanh(), nn.Linear(350, 400), nn.Linear(400, 1)).double()
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in (generator, critic)]
    return generator, critic, *optimizers


def train_gan(parts, real, noise):
    generator, critic, of_generator, of_critic = parts
    for step in range(3):
        of_critic.zero_grad()
        fake = generator(noise[step])
        (critic(fake.detach()).mean() - critic(real[step]).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        critic.requires_grad_(False)  # the generator's loss passes through the critic
        (-critic(fake).mean()).backward()
        critic.requires_grad_(True)
        of_generator.step()
    return [*generator.parameters(), *critic.parameters()]


@rank_test(n=[1, 2, 3], door="torch")
def test_a_gan_trains_as_on_one_process(hvd):
    import torch

    torch.manual_seed(9)
    real, noise = torch.randn(3, 12, 3, dtype=torch.float64), torch.randn(3, 12, 4, dtype=torch.float64)
    expected = train_gan(gan(), real, noise)
    generator, critic, *optimizers = gan()
    teams = [hvd.DistributedOptimizer(optimizer, team=hvd.Team(threads=2)) for optimizer in optimizers]
    mine = slice(hvd.rank(), None, hvd.size())
    found = train_gan((generator, critic, *teams), real[:, mine], noise[:, mine])
    assert hvd.check_buffers_match([p.detach() for p in found]) == 0
    for p, q in zip(found, expected):
        # float64 rounding, which Adam divides by the gradient's size
        torch.testing.assert_close(p, q, rtol=0, atol=0 if hvd.size() == 1 else 1e-9)


@rank_test(n=[2, 3], door="torch")
def test_models_that_train_in_threads_of_their_own(hvd):
    """The ranks start their threads in different orders, and the models take different numbers of steps."""
    steps = [7, 3, 5]
    models = [weights(SMALL, LARGE, 3), weights(LARGE), weights(SMALL)]
    optimizers = [sgd(hvd, parameters, team=hvd.Team(threads=2)) for parameters in models]
    failures = []

    def work(index):
        try:
            train(hvd, optimizers[index], models[index], steps[index])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    turned = threads[hvd.rank() :] + threads[: hvd.rank()]
    for thread in turned:
        thread.start()
    for thread in turned:
        thread.join(timeout=20)
    assert failures == []
    for parameters, count in zip(models, steps):
        assert all((p == -count * mean(hvd)).all() for p in parameters)


@rank_test(n=[2, 3], door="torch")
def test_ranks_that_run_backward_of_two_models_in_different_orders(hvd):
    """Plans do not wait for one another: only step() has to come in the same order."""
    models = [weights(SMALL, LARGE), weights(LARGE, SMALL)]
    optimizers = [sgd(hvd, parameters) for parameters in models]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for parameters in models[:: 1 if hvd.rank() == 0 else -1]:
            sum((p * (hvd.rank() + 1)).sum() for p in parameters).backward()
            if step == 2 and hvd.size() == 2:
                time.sleep(5)  # a long backward: threads wait in different steps, but the program comes to both
        for optimizer in optimizers:
            optimizer.step()
    assert all((p == -3 * mean(hvd)).all() for parameters in models for p in parameters)


# Statistics


@rank_test(n=[1, 2, 3], door="torch")
def test_a_line_of_statistics_every_so_many_steps(hvd):
    parameters = weights(SMALL, LARGE)
    optimizer = sgd(hvd, parameters, team=hvd.Team(stats_every=2))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        train(hvd, optimizer, parameters, steps=5)
    lines = printed.getvalue().splitlines()
    if hvd.rank() > 0:
        assert lines == []
        return
    megabytes = f"{2 * 4 * (SMALL + LARGE) / 1e6:.1f}"
    for line in lines:
        assert re.fullmatch(
            rf"farandole: SGD\.\d+: 2 steps on {hvd.size()} ranks?, {megabytes} MB reduced in \d+\.\d+ s "
            r"\(\d+\.\d+ GB/s\), \d+\.\d+ s exposed",
            line,
        ), line
    assert len(lines) == 2


@rank_test(n=[1, 2, 3], door="torch")
def test_statistics_on_request(hvd):
    parameters = weights(SMALL, LARGE)
    optimizer = sgd(hvd, parameters)
    train(hvd, optimizer, parameters, steps=3)
    found = optimizer.communication_statistics()
    assert found["steps"] == 3
    assert found["bytes"] == pytest.approx(3 * 4 * (SMALL + LARGE), rel=1e-4)
    assert found["seconds"] > 0
    assert found["exposed_s"] > 0
