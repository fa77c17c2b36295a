"""The same collectives on tensors, and their gradients."""

import contextlib
from unittest import mock

import pytest

from ranktest import rank_test

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
COUNTS = (1, 1001, 300_007)


def values(rank, dtype, count):
    """Small enough for every type to hold sums and products exactly."""
    import torch

    numbers = torch.arange(rank, rank + count) % 5
    return (numbers - (0 if dtype == "uint8" else 1)).to(getattr(torch, dtype))


def expected(op, tensors):
    import torch

    dtype = tensors[0].dtype
    wide = torch.stack(tensors).double()
    if op == "Average":
        mean = wide.sum(0) / len(tensors)
        return mean.trunc().to(dtype) if not dtype.is_floating_point else mean.float().to(dtype)
    return {"Sum": wide.sum, "Min": wide.amin, "Max": wide.amax, "Product": wide.prod}[op](0).to(dtype)


def same(found, wanted):
    assert (found.dtype, found.shape, found.device) == (wanted.dtype, wanted.shape, wanted.device)
    assert found.equal(wanted), (found.flatten()[:5], wanted.flatten()[:5])


# Values


@rank_test(n=[2, 3], door="torch")
@pytest.mark.parametrize("op", ["Average", "Sum", "Min", "Max", "Product"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_allreduce_of_every_type_and_operation(hvd, dtype, op):
    import torch

    if (dtype, op) == ("bool", "Average"):
        with pytest.raises(ValueError, match="bool has no average"):
            hvd.allreduce(torch.ones(3, dtype=torch.bool))
        return
    for count in COUNTS:
        tensors = [values(rank, dtype, count) for rank in range(hvd.size())]
        wanted = expected(op, tensors)
        if (dtype, op) == ("float64", "Average"):
            wanted = torch.stack(tensors).sum(0) / hvd.size()
        mine = tensors[hvd.rank()].clone()
        same(hvd.allreduce(mine, op=getattr(hvd, op)), wanted)
        same(mine, tensors[hvd.rank()])
        assert hvd.allreduce_(mine, op=getattr(hvd, op)) is mine
        same(mine, wanted)


@rank_test(n=[2, 3], door="torch")
@pytest.mark.parametrize("dtype", DTYPES)
def test_moving_data_of_every_type(hvd, dtype):
    import torch

    me, size = hvd.rank(), hvd.size()
    uneven = [values(rank, dtype, 3 * rank + 1).reshape(-1, 1) for rank in range(size)]
    same(hvd.allgather(uneven[me]), torch.cat(uneven))
    gathered = hvd.gather(uneven[me], size - 1)
    assert gathered is None if me != size - 1 else gathered.equal(torch.cat(uneven))
    even = [values(rank, dtype, 30_001 * size) for rank in range(size)]
    same(hvd.broadcast(even[me], 1), even[1])
    copy = even[me].clone()
    assert hvd.broadcast_(copy, 1) is copy
    same(copy, even[1])
    same(hvd.broadcast(even[me][3], 1), even[1][3])
    same(hvd.alltoall(even[me]), torch.cat([t.chunk(size)[me] for t in even]))
    splits = torch.arange(1, size + 1, dtype=torch.int32)
    out, received = hvd.alltoall(even[me][: splits.sum()], splits)
    assert received.dtype == torch.int32 and received.tolist() == [me + 1] * size
    same(out, torch.cat([t[: splits.sum()].split(splits.tolist())[me] for t in even]))
    if dtype != "bool":
        rows = [values(rank, dtype, 7) for rank in range(size)]
        same(hvd.reducescatter(rows[me], op=hvd.Sum), torch.tensor_split(expected("Sum", rows), size)[me])


@rank_test(n=2, door="torch")
def test_every_asynchronous_form(hvd):
    import torch

    def mine():
        return torch.full((4, 2), float(hvd.rank() + 1))

    def done(handle):
        return hvd.synchronize(handle)

    total = torch.full((4, 2), 3.0)
    same(done(hvd.allreduce_async(mine(), op=hvd.Sum)), total)
    tensor = mine()
    assert done(hvd.allreduce_async_(tensor, op=hvd.Sum)) is tensor
    same(tensor, total)
    for tensors in (
        done(hvd.grouped_allreduce_async([mine(), mine()[0, 0]], op=hvd.Sum)),
        done(hvd.grouped_allreduce_async_([mine(), mine()[0, 0]], op=hvd.Sum)),
        hvd.grouped_allreduce_([mine(), mine()[0, 0]], op=hvd.Sum),
        hvd.grouped_allreduce([mine(), mine()[0, 0]], op=hvd.Sum),
    ):
        same(tensors[0], total)
        same(tensors[1], torch.tensor(3.0))
    joined = torch.cat([torch.full((4, 2), 1.0), torch.full((4, 2), 2.0)])
    same(done(hvd.allgather_async(mine())), joined)
    for tensors in (
        hvd.grouped_allgather([mine(), mine()]),
        done(hvd.grouped_allgather_async([mine(), mine()])),
    ):
        same(tensors[1], joined)
    root = torch.full((4, 2), 2.0)
    same(done(hvd.broadcast_async(mine(), 1)), root)
    same(done(hvd.broadcast_async_(mine(), 1)), root)
    found = done(hvd.gather_async(mine(), 1))
    assert found is None if hvd.rank() == 0 else found.equal(joined)
    dealt = torch.cat([torch.full((2, 2), 1.0), torch.full((2, 2), 2.0)])
    same(done(hvd.alltoall_async(mine())), dealt)
    out, received = done(hvd.alltoall_async(mine(), torch.tensor([2, 2], dtype=torch.int32)))
    same(out, dealt)
    assert received.tolist() == [2, 2]
    same(done(hvd.reducescatter_async(mine(), op=hvd.Sum)), total[:2])
    for tensors in (
        hvd.grouped_reducescatter([mine(), mine()], op=hvd.Sum),
        done(hvd.grouped_reducescatter_async([mine(), mine()], op=hvd.Sum)),
    ):
        same(tensors[1], total[:2])


@rank_test(n=2, door="torch")
@pytest.mark.parametrize("edge", [6, 600])
def test_any_layout_of_memory(hvd, edge):
    import torch

    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        base = (torch.arange(edge * edge) % 50 + hvd.rank()).to(dtype).reshape(edge, edge)
        total = (torch.arange(edge * edge) % 50 * 2 + 1).to(dtype).reshape(edge, edge)
        root = (torch.arange(edge * edge) % 50 + 1).to(dtype).reshape(edge, edge)
        for pick in (
            lambda t: t.T,
            lambda t: t[::2, 1::3],
            lambda t: t[:, 1],
            lambda t: t[2, 3],
            lambda t: t[:0],
            lambda t: t.reshape(1, 2, edge // 2, edge).contiguous(memory_format=torch.channels_last),
            lambda t: t[:1].expand(3, edge),
        ):
            same(hvd.allreduce(pick(base), op=hvd.Sum), pick(total))
            same(hvd.broadcast(pick(base), 1), pick(root))
        for pick in (lambda t: t.T, lambda t: t[::2, 1::3], lambda t: t[:, 1], lambda t: t[2, 3]):
            for call, result in (
                (lambda t: hvd.allreduce_(t, op=hvd.Sum), total),
                (lambda t: hvd.broadcast_(t, 1), root),
            ):
                changed, wanted = base.clone(), base.clone()
                call(pick(changed))
                pick(wanted).copy_(pick(result))
                same(changed, wanted)
        gathered = hvd.allgather(base.T)
        same(gathered[hvd.rank() * edge : (hvd.rank() + 1) * edge], base.T.contiguous())


@rank_test(n=2, door="torch")
def test_parameters_are_reduced_in_place(hvd):
    import torch

    parameter = torch.nn.Parameter(torch.full((3,), float(hvd.rank())))
    hvd.allreduce_(parameter)
    assert parameter.tolist() == [0.5] * 3 and parameter.requires_grad
    hvd.broadcast_(parameter.data.fill_(hvd.rank()), root_rank=1)
    assert parameter.tolist() == [1.0] * 3
    hvd.average(parameter.data.fill_(hvd.rank()))
    assert parameter.tolist() == [0.5] * 3


@rank_test(n=[1, 2], door="torch")
def test_what_is_written_in_place_is_seen_by_autograd(hvd):
    import torch

    parameter = torch.nn.Parameter(torch.ones(3))
    for write in (hvd.allreduce_, lambda t: hvd.broadcast_(t, 0), lambda t: hvd.grouped_allreduce_([t])):
        before, loss = parameter._version, parameter.square().sum()
        write(parameter)
        assert parameter._version > before
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with torch.no_grad():
        hvd.broadcast_(parameter, 0)
    parameter.square().sum().backward()
    hvd.allreduce_(parameter.grad)
    with torch.inference_mode():
        assert hvd.allreduce_(torch.ones(2)).tolist() == [1, 1]


@rank_test(n=2, door="torch")
@pytest.mark.parametrize("wire", ["fp16", "bf16"])
def test_compression(hvd, wire):
    import torch

    how, short = getattr(hvd.Compression, wire), {"fp16": torch.float16, "bf16": torch.bfloat16}[wire]
    x = torch.linspace(0.1, 1, 1001, dtype=torch.float64, requires_grad=True)
    found = hvd.allreduce(x, op=hvd.Sum, compression=how)
    same(found.detach(), (x.detach().to(short).float() * 2).to(short).double())
    found.sum().backward()
    assert x.grad.dtype == torch.float64 and (x.grad == 2).all()
    rows = hvd.reducescatter(x.detach()[:4], op=hvd.Sum, compression=how)
    same(rows, found.detach()[:4].chunk(2)[hvd.rank()])
    assert hvd.allreduce(torch.tensor([2**20 + 1]), op=hvd.Sum, compression=how).tolist() == [2**21 + 2]
    small, context = how.compress(torch.ones(2))
    assert small.dtype == short and how.decompress(small, context).dtype == torch.float32


@rank_test(n=2, door="torch")
def test_errors_are_raised_on_the_spot(hvd):
    import torch

    for call in (hvd.allgather, hvd.reducescatter, hvd.alltoall):
        with pytest.raises(ValueError, match="0-d array has no rows"):
            call(torch.tensor(1.0))
    with pytest.raises(ValueError, match="op or average"):
        hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)
    for splits in (torch.tensor([1, 1]), torch.tensor([[2, 2]]), torch.tensor([2.0, 2.0])):
        with pytest.raises(ValueError, match="splits"):
            hvd.alltoall(torch.ones(4), splits)
    with pytest.raises(ValueError, match=r"complex64.*float32"):
        hvd.allreduce(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="root_rank=2"):
        hvd.broadcast(torch.ones(1), 2)
    hvd.barrier()


@rank_test(n=2, door="torch")
def test_buffers_that_match_and_buffers_that_do_not(hvd):
    import torch

    weights = torch.arange(6.0).reshape(2, 3)
    assert hvd.check_buffers_match([weights, weights.T, weights.bfloat16()]) == 0
    assert hvd.check_buffers_match([weights, weights + hvd.rank()]) == 1


@rank_test(n=2, door="torch")
def test_scaling_of_half_precision_is_done_in_float32(hvd):
    import torch

    big = torch.full((5,), 60_000.0, dtype=torch.float16)
    same(hvd.allreduce(big), big)
    same(hvd.allreduce(big, op=hvd.Sum, postscale_factor=0.25), big / 2)
    same(hvd.allreduce(big, op=hvd.Sum, prescale_factor=1 / 1024), (big.float() / 512).half())


# Gradients: facts of Horovod's API, for losses that differ between ranks


def weights(rank, count):
    import torch

    return torch.arange(1.0, count + 1) * (rank + 1)


def loss_of(tensor, rank):
    """A loss whose gradient is this rank's weights."""
    return (tensor.flatten() * weights(rank, tensor.numel())).sum()


@rank_test(n=[2, 3], door="torch")
def test_gradient_of_allreduce_is_the_same_reduction(hvd):
    import torch

    of_all = torch.stack([weights(rank, 4) for rank in range(hvd.size())])
    for op, reduced in ((hvd.Sum, of_all.sum(0)), (hvd.Average, of_all.sum(0) / hvd.size())):
        x = torch.ones(4, requires_grad=True)
        loss_of(hvd.allreduce(x, op=op), hvd.rank()).backward()
        same(x.grad, reduced)
    x = torch.ones(4, requires_grad=True)
    loss_of(hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0), hvd.rank()).backward()
    same(x.grad, 6 * of_all.sum(0))


@rank_test(n=2, door="torch")
def test_gradient_of_a_group_reaches_every_member(hvd):
    import torch

    x, y = torch.ones(4, requires_grad=True), torch.ones(2, 2, requires_grad=True)
    reduced = hvd.grouped_allreduce([x, y], op=hvd.Sum)
    loss_of(reduced[0], hvd.rank()).backward(retain_graph=True)  # the other one gets zeros
    same(x.grad, 3 * weights(0, 4))
    same(y.grad, torch.zeros(2, 2))
    loss_of(reduced[1], hvd.rank()).backward()
    same(y.grad, 3 * weights(0, 4).reshape(2, 2))


@rank_test(n=[2, 3], door="torch")
def test_gradient_of_allgather_is_the_average_of_one_s_own_rows(hvd):
    import torch

    rows = [rank + 1 for rank in range(hvd.size())]
    x = torch.ones(rows[hvd.rank()], 2, requires_grad=True)
    loss_of(hvd.allgather(x), hvd.rank()).backward()
    mean = torch.stack([weights(rank, 2 * sum(rows)) for rank in range(hvd.size())]).sum(0) / hvd.size()
    same(x.grad, mean.reshape(-1, 2).split(rows)[hvd.rank()])


@rank_test(n=[1, 2, 3], door="torch")
def test_gradient_of_gather_is_the_root_s_of_one_s_own_rows(hvd):
    import torch

    root, rows = hvd.size() - 1, [2 * rank + 1 for rank in range(hvd.size())]
    x = torch.ones(rows[hvd.rank()], 2, requires_grad=True)
    found = hvd.gather(x, root, differentiable=True)
    assert found.shape == (sum(rows) if hvd.rank() == root else 0, 2)
    loss_of(found, hvd.rank()).backward()
    same(x.grad, weights(root, 2 * sum(rows)).reshape(-1, 2).split(rows)[hvd.rank()])


@rank_test(n=2, door="torch")
def test_a_gradient_that_gather_cannot_hand_out_is_not_dropped(hvd):
    import torch

    x = torch.ones(2, requires_grad=True)
    found = hvd.gather(x, 0)
    assert (found is None) == (hvd.rank() == 1)
    if found is not None:
        with pytest.raises(RuntimeError, match="differentiable=True"):
            (x.sum() + found.sum()).backward()
    assert hvd.gather(x.detach(), 1, differentiable=True).shape[0] == 4 * hvd.rank()


@rank_test(n=[2, 3], door="torch")
def test_gradient_of_broadcast_is_the_average_on_the_root(hvd):
    import torch

    x = torch.ones(3, requires_grad=True)
    loss_of(hvd.broadcast(x, root_rank=1), hvd.rank()).backward()
    mean = torch.stack([weights(rank, 3) for rank in range(hvd.size())]).sum(0) / hvd.size()
    same(x.grad, mean if hvd.rank() == 1 else torch.zeros(3))


@rank_test(n=[2, 3], door="torch")
def test_gradient_of_alltoall_goes_back_the_way_it_came(hvd):
    import torch

    me, size = hvd.rank(), hvd.size()
    splits = torch.tensor([me + 1] * size, dtype=torch.int32)  # rank r sends r + 1 rows to everyone
    x = torch.ones(size * (me + 1), requires_grad=True)
    out, _ = hvd.alltoall(x, splits)
    loss_of(out, me).backward()
    starts = sum(range(1, me + 1))
    same(x.grad, torch.cat([weights(rank, 99)[starts : starts + me + 1] for rank in range(size)]))
    y = torch.ones(size, requires_grad=True)
    loss_of(hvd.alltoall(y), me).backward()
    same(y.grad, torch.stack([weights(rank, size)[me] for rank in range(size)]))


@rank_test(n=[2, 3], door="torch")
def test_gradient_of_reducescatter_is_gathered(hvd):
    import torch

    size, rows = hvd.size(), 5
    shares = [len(part) for part in torch.arange(rows).tensor_split(size)]
    for op, factor in ((hvd.Sum, size), (hvd.Average, 1)):
        x = torch.ones(rows, requires_grad=True)
        loss_of(hvd.reducescatter(x, op=op), hvd.rank()).backward()
        same(x.grad, factor * torch.cat([weights(rank, share) for rank, share in enumerate(shares)]))


@rank_test(n=2, door="torch")
def test_gradients_within_a_process_set(hvd):
    import torch

    alone = hvd.add_process_set([1])
    if hvd.rank() == 1:
        x = torch.ones(3, requires_grad=True)
        loss_of(
            hvd.allgather(hvd.allreduce(x, op=hvd.Sum, process_set=alone), process_set=alone), 1
        ).backward()
        same(x.grad, weights(1, 3))
    assert hvd.remove_process_set(alone)


@contextlib.contextmanager
def a_device():
    """Makes tensors that are staged as a device's are: whoever wants their values gets a copy."""
    import torch

    class OnDevice(torch.Tensor):
        def cpu(self):
            return self.as_subclass(torch.Tensor).clone()

    with contextlib.ExitStack() as patches:
        for module in ("tensors", "ops", "gradients"):
            name = f"farandole.torch.{module}.staged"
            patches.enter_context(mock.patch(name, lambda tensor: isinstance(tensor, OnDevice)))
        yield lambda tensor: tensor.as_subclass(OnDevice)


@rank_test(n=[1, 2], door="torch")
def test_tensors_of_a_device_are_copied_there_and_back(hvd):
    import torch

    mine, total = float(hvd.rank() + 1), hvd.size() * (hvd.size() + 1) / 2
    with a_device() as on_device:

        def tensor(count=3):
            return on_device(torch.full((count,), mine))

        assert hvd.allreduce(tensor(), op=hvd.Sum).tolist() == [total] * 3
        assert hvd.synchronize(hvd.allreduce_async(tensor(), op=hvd.Sum)).tolist() == [total] * 3
        assert hvd.allgather(tensor(1)).tolist() == [1.0, 2.0][: hvd.size()]
        assert hvd.broadcast(tensor(), root_rank=hvd.size() - 1).tolist() == [float(hvd.size())] * 3
        for in_place, expected in (
            (lambda t: hvd.allreduce_(t, op=hvd.Sum), total),
            (lambda t: hvd.broadcast_(t, root_rank=0), 1.0),
            (lambda t: hvd.synchronize(hvd.allreduce_async_(t, op=hvd.Sum)), total),
        ):
            x = tensor()
            assert in_place(x) is x and x.tolist() == [expected] * 3
        parameters = [on_device(torch.zeros(count)).requires_grad_() for count in (5, 300_000)]
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), op=hvd.Sum)
        for step in (1, 2):
            optimizer.zero_grad()
            sum((p * mine).sum() for p in parameters).backward()
            optimizer.step()
            assert all(p.detach().eq(-total * step).all() for p in parameters)
