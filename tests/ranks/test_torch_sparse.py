"""Sparse tensors over ranks, against the same arithmetic on dense ones."""

import pytest

from ranktest import rank_test


def sparse(rank, shape, values):
    """A tensor with `values` entries; some places twice, so that it is not coalesced."""
    import torch

    random = torch.Generator().manual_seed(rank)
    places = torch.stack([torch.randint(0, n, (values,), generator=random) for n in shape[:1]])
    content = torch.randint(-9, 9, (values, *shape[1:]), generator=random).float()
    return torch.sparse_coo_tensor(places, content, shape)


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("shape", [(50, 8), (7,), (5, 2, 3)], ids=str)
def test_sums_and_averages_are_those_of_dense_tensors(hvd, shape):
    import torch

    of_all = [sparse(rank, shape, 12 * rank) for rank in range(hvd.size())]  # rank 0 has no values
    total = sum(t.to_dense() for t in of_all)
    waits = [
        hvd.sparse_allreduce_async(of_all[hvd.rank()], name=f"{op}", op=op) for op in (hvd.Sum, hvd.Average)
    ]
    averaged, summed = (wait() for wait in reversed(waits))
    assert summed.is_sparse and summed.is_coalesced()
    assert torch.equal(summed.to_dense(), total)
    torch.testing.assert_close(averaged.to_dense(), total / hvd.size())


@rank_test(n=2, door="torch")
def test_what_is_not_sparse_is_refused(hvd):
    import torch

    from farandole.errors import SettingsError

    with pytest.raises(SettingsError, match="use allreduce for dense ones"):
        hvd.sparse_allreduce_async(torch.ones(3), name="x")
    with pytest.raises(SettingsError, match="use Average or Sum"):
        hvd.sparse_allreduce_async(sparse(0, (4, 2), 3), name="x", op=hvd.Max)


def test_failed_collectives_are_horovods_internal_errors():
    from farandole import errors

    for failure in (errors.RankFailedError, errors.StalledError, errors.EngineStopped):
        assert issubclass(failure, errors.HorovodInternalError)
