"""SyncBatchNorm on N ranks against torch's BatchNorm on the whole batch.

Tolerance: statistics are combined in float64 and torch's are not, so that results differ by some float32 roundings.
"""

import pytest

from ranktest import rank_test

SHAPES = {"1d": (13, 6), "2d": (9, 4, 5, 3), "3d": (8, 3, 2, 3, 4)}
CLOSE = {"rtol": 2e-5, "atol": 2e-6}


def uneven(hvd, rows):
    """Where this rank's share of the rows begins and ends; no two shares are alike."""
    weights = range(1, hvd.size() + 1)
    cuts = [rows * sum(weights[:rank]) // sum(weights) for rank in range(hvd.size() + 1)]
    return cuts[hvd.rank()], cuts[hvd.rank() + 1]


def layers(hvd, kind, shape, **settings):
    import torch

    torch.manual_seed(3)
    plain = getattr(torch.nn, f"BatchNorm{kind}")(shape[1], **settings)
    ours = hvd.SyncBatchNorm(shape[1], **settings)
    if plain.affine:
        torch.nn.init.normal_(plain.weight)
        torch.nn.init.normal_(plain.bias)
    ours.load_state_dict(plain.state_dict())
    return plain, ours


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("kind", ["1d", "2d", "3d"])
@pytest.mark.parametrize(
    "settings", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}], ids=str
)
def test_the_whole_batch_is_normalised(hvd, kind, settings):
    import torch

    shape = SHAPES[kind]
    plain, ours = layers(hvd, kind, shape, **settings)
    start, stop = uneven(hvd, shape[0])
    for step in range(3):
        whole = (torch.randn(shape) * 3 + 100 * step).requires_grad_()
        part = whole.detach()[start:stop].clone().requires_grad_()
        weights = torch.randn(shape)
        expected, found = plain(whole), ours(part)
        torch.testing.assert_close(found, expected[start:stop], rtol=2e-5, atol=2e-5)
        plain.zero_grad()
        ours.zero_grad()
        (expected * weights).sum().backward()
        (found * weights[start:stop]).sum().backward()
        torch.testing.assert_close(part.grad, whole.grad[start:stop], rtol=2e-4, atol=2e-5)
        for mine, theirs in zip(ours.parameters(), plain.parameters()):
            total = hvd.allreduce(mine.grad, op=hvd.Sum)
            torch.testing.assert_close(total, theirs.grad, rtol=1e-4, atol=1e-4)
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], **CLOSE, msg=name)
    plain.eval()
    ours.eval()
    if plain.track_running_stats:
        x = torch.randn(shape)
        torch.testing.assert_close(ours(x), plain(x), **CLOSE)


@rank_test(n=[2, 3], door="torch")
def test_a_rank_without_samples_takes_part(hvd):
    import torch

    plain, ours = layers(hvd, "1d", (10, 4))
    whole = torch.randn(10, 4)
    rows = 10 // (hvd.size() - 1)
    part = whole[: rows * (hvd.size() - 1)].split(rows)[hvd.rank() - 1] if hvd.rank() else whole[:0]
    plain(whole[: rows * (hvd.size() - 1)])
    assert ours(part).shape == part.shape
    torch.testing.assert_close(ours.running_var, plain.running_var, **CLOSE)


@rank_test(n=[2, 3], door="torch")
def test_a_model_is_converted_and_trains_as_on_one_rank(hvd):
    import torch
    from torch import nn

    def model():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 6), nn.BatchNorm1d(6)
        )

    plain, ours = model(), hvd.SyncBatchNorm.convert_sync_batchnorm(model())
    assert [type(layer).__name__ for layer in ours].count("SyncBatchNorm") == 2
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(ours.parameters(), lr=0.1))
    for _ in range(4):
        x, y = torch.randn(6 * hvd.size(), 2, 6, 6), torch.randn(6 * hvd.size(), 6)
        mine = slice(6 * hvd.rank(), 6 * hvd.rank() + 6)
        for net, trainer, rows in ((plain, reference, slice(None)), (ours, optimizer, mine)):
            trainer.zero_grad()
            (net(x[rows]) - y[rows]).square().mean().backward()
            trainer.step()
    for mine_p, theirs in zip(ours.parameters(), plain.parameters()):
        torch.testing.assert_close(mine_p, theirs, rtol=1e-4, atol=1e-5)


@rank_test(n=2, door="torch")
def test_wrong_shapes_and_single_values_are_errors(hvd):
    import torch

    with pytest.raises(ValueError, match=r"expects \(batch, 4, ...\), got \(3, 5\)"):
        hvd.SyncBatchNorm(4)(torch.randn(3, 5))
    with pytest.raises(ValueError, match="1 value per channel"):
        hvd.SyncBatchNorm(4)(torch.randn(1 - hvd.rank(), 4))
