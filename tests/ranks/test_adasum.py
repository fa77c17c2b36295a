"""Adasum against its definition, computed on one rank from everybody's arrays."""

import numpy as np
import pytest

from ranktest import rank_test


def two(a, b):
    """The definition, for two."""
    both = float(a @ b)
    return a * (1 - both / (2 * (a @ a))) + b * (1 - both / (2 * (b @ b)))


def tree(arrays):
    while len(arrays) > 1:
        arrays = [two(a, b) for a, b in zip(arrays[::2], arrays[1::2])]
    return arrays[0]


def of_rank(rank, count=1000):
    return np.random.default_rng(rank).standard_normal(count)


@rank_test(n=[1, 2, 4])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_pairs_of_pairs(fd, dtype):
    import ml_dtypes

    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    found = fd.allreduce(of_rank(fd.rank()).astype(kind), op=fd.Adasum)
    expected = tree([of_rank(rank).astype(kind).astype(np.float64) for rank in range(fd.size())])
    # One rounding to the type, and those of float32 arithmetic.
    tolerance = {"float64": 1e-13, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    assert found.dtype == kind
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=tolerance, atol=tolerance)
    assert len({f.tobytes() for f in fd.allgather_object(found)}) == 1


@rank_test(n=[2, 4])
def test_equal_arrays_stay_and_orthogonal_ones_add_up(fd):
    same = of_rank(7)
    np.testing.assert_allclose(fd.allreduce(same, op=fd.Adasum), same, rtol=1e-12)
    own = np.zeros(fd.size())
    own[fd.rank()] = fd.rank() + 1
    assert fd.allreduce(own, op=fd.Adasum).tolist() == [rank + 1 for rank in range(fd.size())]
    assert fd.allreduce(np.zeros(5), op=fd.Adasum).tolist() == [0] * 5


@rank_test(n=[2, 4])
def test_each_of_a_group_is_combined_for_itself(fd):
    arrays = [of_rank(fd.rank(), 50), of_rank(fd.rank() + 10, 1), of_rank(fd.rank() + 20, 0)]
    found = fd.grouped_allreduce(arrays, op=fd.Adasum, prescale_factor=2.0, postscale_factor=0.5)
    for shift, result in zip((0, 10), found):
        expected = tree([of_rank(rank + shift, result.size) for rank in range(fd.size())])
        np.testing.assert_allclose(result, expected, rtol=1e-12)
    assert found[2].size == 0


@rank_test(n=3)
def test_what_cannot_be_combined_is_refused(fd):
    with pytest.raises(ValueError, match=r"needs 2, 4, 8, \.\.\. ranks, the set has 3"):
        fd.allreduce(np.ones(2), op=fd.Adasum)
    assert fd.allreduce(np.ones(2), op=fd.Sum).tolist() == [3, 3]


@rank_test(n=2)
def test_integers_are_refused(fd):
    with pytest.raises(ValueError, match="for floating-point arrays, this one is int64"):
        fd.allreduce(np.ones(2, np.int64), op=fd.Adasum)


@rank_test(n=[1, 2, 4], door="torch")
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_an_optimizer_combines_the_steps_of_the_ranks(hvd, kind):
    import torch

    def problem(rank):
        torch.manual_seed(11)
        layer = torch.nn.Linear(6, 4)
        optimizer = getattr(torch.optim, kind)(layer.parameters(), lr=0.1)
        data = torch.randn(8, 6, generator=torch.Generator().manual_seed(rank))
        return layer, optimizer, data

    def train(layer, optimizer, data):
        optimizer.zero_grad()
        layer(data).square().mean().backward()
        return optimizer.step()

    layer, optimizer, data = problem(hvd.rank())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=layer.named_parameters(), op=hvd.Adasum)
    alone = [problem(rank) for rank in range(hvd.size())]
    for _ in range(3):
        train(layer, optimizer, data)
        before = [[p.detach().clone() for p in other.parameters()] for other, _, _ in alone]
        for other in alone:
            train(*other)
        for index, ps in enumerate(zip(*(other.parameters() for other, _, _ in alone))):
            moved = [(p.detach() - old[index]).double().flatten().numpy() for p, old in zip(ps, before)]
            step = torch.tensor(tree(moved), dtype=torch.float32).view(ps[0].shape)
            for p, old in zip(ps, before):
                p.data.copy_(old[index] + step)
    for mine, expected in zip(layer.parameters(), alone[0][0].parameters()):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)
    assert hvd.check_buffers_match([p.detach() for p in layer.parameters()]) == 0
    with pytest.raises(ValueError, match="combines steps"):
        optimizer.skip_synchronize()
    with pytest.raises(ValueError, match="distributed already"):
        hvd.DistributedOptimizer(optimizer)


@rank_test(n=2, door="torch")
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(hvd, unscale, kind):
    import torch

    def make(**options):
        weight = torch.nn.Parameter(torch.ones(3))
        return weight, getattr(torch.optim, kind)([weight], lr=0.5, **options)

    weight, optimizer = make(fused=kind == "Adam")  # which would unscale by itself
    alone, plain = make()
    optimizer = hvd.DistributedOptimizer(optimizer, op=hvd.Adasum)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for overflows in (False, True, False):
        optimizer.zero_grad()
        scaler.scale((weight * weight).sum()).backward()
        if overflows and hvd.rank() == 1:
            weight.grad.fill_(float("inf"))
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        if not overflows:  # equal steps stay as they are
            plain.zero_grad()
            (alone * alone).sum().backward()
            plain.step()
        torch.testing.assert_close(weight, alone)
    assert scaler.get_scale() == (8.0 if hvd.rank() == 0 else 4.0)
