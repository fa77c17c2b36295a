"""DistributedOptimizer: its arguments, its order of calls, and what it says when they are wrong."""

import contextlib
import gc
import re
import threading
import time
import tracemalloc
import warnings

import pytest

from ranktest import rank_test, run_ranks

SMALL, LARGE = 5, 300_000  # packed; reduced where it lies


def weights(*sizes):
    import torch

    return [torch.nn.Parameter(torch.zeros(size)) for size in sizes]


def torch_module(parameters):
    import torch

    model = torch.nn.Module()
    model.parameters_ = torch.nn.ParameterList(parameters)
    return model


def sgd(hvd, parameters, **options):
    import torch

    return hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), **options)


def backward(hvd, parameters, factor=1.0):
    """Rank r's gradient is r + 1 everywhere."""
    sum((p * (hvd.rank() + 1)).sum() for p in parameters).mul(factor).backward()


def total(hvd):
    """The sum of all ranks' gradients."""
    return hvd.size() * (hvd.size() + 1) / 2


def assert_all(parameters, value):
    import torch

    for p in parameters:
        torch.testing.assert_close(p.detach(), torch.full_like(p, value))


# Arguments


@rank_test(n=[1, 2, 3], door="torch", shipped=True)
def test_average_sum_and_predivide(hvd):
    mean = total(hvd) / hvd.size()
    expected = {"Average": mean, "Sum": total(hvd)}
    for op, value in expected.items():
        parameters = weights(SMALL, LARGE)
        optimizer = sgd(hvd, parameters, op=getattr(hvd, op))
        backward(hvd, parameters)
        optimizer.step()
        assert_all(parameters, -value)
    parameters = weights(SMALL, LARGE)
    optimizer = sgd(hvd, parameters, gradient_predivide_factor=3.0)
    backward(hvd, parameters)
    optimizer.step()
    assert_all(parameters, -mean)


@rank_test(n=2, door="torch")
def test_arguments_that_cannot_work(hvd):
    for op in (hvd.Min, hvd.Max, hvd.Product):
        with pytest.raises(ValueError, match="Average, Sum or Adasum"):
            sgd(hvd, weights(SMALL), op=op)
    with pytest.raises(ValueError, match="op=Average"):
        sgd(hvd, weights(SMALL), op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="num_groups=-1"):
        sgd(hvd, weights(SMALL), num_groups=-1)
    with pytest.raises(ValueError, match="backward_passes_per_step=0"):
        sgd(hvd, weights(SMALL), backward_passes_per_step=0)
    optimizer = sgd(hvd, weights(SMALL))
    with pytest.raises(ValueError, match="backward_passes_per_step=-2"):
        optimizer.set_backward_passes_per_step(-2)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(optimizer)


@rank_test(n=2, door="torch")
def test_names_of_parameters(hvd):
    a, b = weights(SMALL, LARGE)
    with pytest.raises(ValueError, match=r"names twice: same"):
        sgd(hvd, [a, b], named_parameters=[("same", a), ("same", b)])
    with pytest.raises(ValueError, match="lacks names for 1 parameters"):
        sgd(hvd, [a, b], named_parameters=[("a", a)])
    with pytest.raises(ValueError, match="pairs"):
        sgd(hvd, [a, b], named_parameters=[a, b])
    optimizer = sgd(hvd, [a], named_parameters=iter([("a", a), ("of another optimizer", b)]))
    a.grad = a + 1
    optimizer.step()
    assert_all([a], -1)


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("compression, digits", [("fp16", 11), ("bf16", 8)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_compression(hvd, compression, digits, dtype):
    """Each rank's gradient is rounded once and the mean once more: half a unit in the last of `digits` bits each."""
    import torch

    kind = getattr(torch, dtype)
    digits = min(digits, 8) if dtype == "bfloat16" else digits  # 16 bits travel as they are
    parameters = [torch.nn.Parameter(torch.zeros(size, dtype=kind)) for size in (SMALL, LARGE, 7)]
    optimizer = sgd(hvd, parameters, compression=getattr(hvd.Compression, compression))
    gradients = [
        [torch.rand(p.shape, generator=torch.Generator().manual_seed(rank)).to(kind) + 0.5 for p in parameters]
        for rank in range(hvd.size())
    ]
    for _ in range(2):
        optimizer.zero_grad()
        for p, gradient in zip(parameters, gradients[hvd.rank()]):
            (p * gradient).sum().backward()
        optimizer.synchronize()
        for index, p in enumerate(parameters):
            mean = torch.stack([of_rank[index].double() for of_rank in gradients]).mean(0)
            assert p.grad.dtype == kind
            torch.testing.assert_close(p.grad.double(), mean, rtol=2 * 2.0**-digits, atol=0)
        assert hvd.check_buffers_match([p.grad for p in parameters]) == 0
        with optimizer.skip_synchronize():
            optimizer.step()


@rank_test(n=[2, 3], door="torch")
def test_groups_change_nothing_but_the_buckets(hvd):
    import torch

    sizes = [SMALL, LARGE, 3, 7, LARGE, 2]

    def train(groups_of):
        parameters = weights(*sizes)
        parameters.append(torch.nn.Parameter(torch.zeros(4, dtype=torch.float64)))
        optimizer = sgd(hvd, parameters, **groups_of(parameters))
        for _ in range(2):
            optimizer.zero_grad()
            backward(hvd, parameters)
            optimizer.step()
        assert_all(parameters, -2 * total(hvd) / hvd.size())
        return hvd.describe()["plans"][-1]["pieces"]

    train(lambda ps: {"num_groups": 2})
    train(lambda ps: {"num_groups": 100})
    train(lambda ps: {"groups": 3})
    train(lambda ps: {"groups": [[ps[0], ps[4]], [ps[5], ps[6]]]})
    apart = train(lambda ps: {})
    together = train(lambda ps: {"groups": [ps[:6]]})
    assert (apart, together) == (6, 2)


# Sparse gradients


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize(
    ("kind", "dense_layer"), [("SGD", True), ("SGD", False), ("Adagrad", True), ("SparseAdam", False)]
)
def test_sparse_gradients_stay_sparse(hvd, kind, dense_layer):
    """Against one rank with everybody's batch; some ranks have no gradient in some steps, then nobody has."""
    import torch
    from torch import nn

    torch.manual_seed(5)
    table, layer = nn.Embedding(400_000, 3, sparse=True), nn.Linear(3, 2)
    plain_table, plain_layer = nn.Embedding(400_000, 3, sparse=True), nn.Linear(3, 2)
    plain_table.load_state_dict(table.state_dict())
    plain_layer.load_state_dict(layer.state_dict())
    ours = [table.weight, *(layer.parameters() if dense_layer else ())]
    theirs = [plain_table.weight, *(plain_layer.parameters() if dense_layer else ())]
    optimizer = hvd.DistributedOptimizer(getattr(torch.optim, kind)(ours, lr=0.05))
    reference = getattr(torch.optim, kind)(theirs, lr=0.05)

    def loss(words, table, layer):
        return layer(table(words)).square().sum() if dense_layer else table(words).square().sum()

    for step in range(5):
        optimizer.zero_grad()
        reference.zero_grad()
        batches = [torch.tensor([rank, 7, 7, 399_999 - step]) for rank in range(hvd.size())]
        active = [rank for rank in range(hvd.size()) if (rank + step) % 3 or hvd.size() == 1] if step < 4 else []
        for rank in active:
            if rank == hvd.rank():
                loss(batches[rank], table, layer).backward()
            (loss(batches[rank], plain_table, plain_layer) / hvd.size()).backward()
        optimizer.synchronize()
        if active:
            assert table.weight.grad.is_sparse and table.weight.grad._nnz() <= 4 * len(active)
        else:
            assert table.weight.grad is None
        with optimizer.skip_synchronize():
            optimizer.step()
        reference.step()
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine, other)
    pieces = hvd.describe()["plans"][-1]["pieces"]
    assert pieces == int(dense_layer)  # the table has left the plan


@rank_test(n=[1, 2, 3], door="torch")
def test_sparse_gradients_made_dense(hvd):
    import torch

    tables = {rows: torch.nn.Embedding(rows, 4, sparse=True) for rows in (10, 80_000)}
    plain = {rows: torch.nn.Embedding(rows, 4, _weight=table.weight.detach().clone()) for rows, table in tables.items()}
    hvd.broadcast_parameters([(str(rows), table.weight) for rows, table in (tables | plain).items()], root_rank=0)
    for rows in tables:
        plain[rows].weight.data.copy_(tables[rows].weight)
    optimizer = sgd(hvd, [table.weight for table in tables.values()], sparse_as_dense=True)
    reference = torch.optim.SGD([table.weight for table in plain.values()], lr=1.0)
    everyone = [torch.tensor([rank, rank + 1, 5]) for rank in range(hvd.size())]
    for _ in range(2):
        optimizer.zero_grad()
        reference.zero_grad()
        sum(table(everyone[hvd.rank()]).sum() for table in tables.values()).backward()
        sum(table(rows).sum() / hvd.size() for table in plain.values() for rows in everyone).backward()
        optimizer.step()
        reference.step()
    for rows, table in tables.items():
        torch.testing.assert_close(table.weight, plain[rows].weight)  # float32 rounding of a mean over 3


# The order of calls


@rank_test(n=[1, 2, 3], door="torch")
def test_step_after_synchronize_warns_once_and_reduces_once(hvd):
    parameters = weights(SMALL, LARGE)
    optimizer = sgd(hvd, parameters, op=hvd.Sum)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            optimizer.zero_grad()
            backward(hvd, parameters)
            optimizer.synchronize()
            optimizer.step()
    assert_all(parameters, -3 * total(hvd))
    # Scripts filter on Horovod's words.
    told = r"optimizer\.step\(\) called without optimizer\.skip_synchronize\(\) context after optimizer\.synchronize\(\)\."
    assert [bool(re.match(told, str(warning.message))) for warning in caught] == [True]


@rank_test(n=2, door="torch")
def test_step_that_skips_synchronize_does_not_warn(hvd):
    parameters = weights(SMALL, LARGE)
    optimizer = sgd(hvd, parameters, op=hvd.Sum)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for closure in (None, lambda: None):
            optimizer.zero_grad()
            backward(hvd, parameters)
            optimizer.synchronize()
            with optimizer.skip_synchronize():
                optimizer.step(closure)
        optimizer.zero_grad()
        backward(hvd, parameters)
        optimizer.step()
    assert_all(parameters, -3 * total(hvd))


@rank_test(n=2, door="torch")
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_clipping_before_synchronize_is_an_error(hvd, size):
    import torch

    parameters = weights(size)
    optimizer = sgd(hvd, parameters, named_parameters=[("layer.weight", parameters[0])])
    backward(hvd, parameters)
    torch.nn.utils.clip_grad_norm_(parameters, 0.1)
    with pytest.raises(ValueError, match=r"layer\.weight.*synchronize\(\) before clipping"):
        optimizer.step()
    assert_all(parameters, 0)
    optimizer.zero_grad()
    backward(hvd, parameters)
    optimizer.step()
    assert_all(parameters, -1.5)


@rank_test(n=2, door="torch")
def test_a_step_that_failed_leaves_nothing_behind(hvd):
    from farandole.comm.world import current

    parameters = weights(SMALL, LARGE)
    optimizer = sgd(hvd, parameters)
    plan = [*current().plans][-1]
    finish, plan.finish = plan.finish, failing_after(plan.finish)
    with pytest.raises(RuntimeError, match="as if a rank had failed"):
        optimizer.step() if hvd.rank() == 0 else step_with(hvd, optimizer, parameters)
    plan.finish = finish
    for p in parameters:
        p.grad = None
    step_with(hvd, optimizer, parameters)
    assert_all(parameters, -total(hvd) / hvd.size())


def failing_after(finish):
    def fails():
        finish()
        raise RuntimeError("as if a rank had failed")

    return fails


def step_with(hvd, optimizer, parameters):
    backward(hvd, parameters)
    optimizer.step()


@rank_test(n=[1, 2], door="torch")
def test_zero_grad_while_gradients_are_on_their_way(hvd):
    parameters = weights(SMALL, LARGE)
    optimizer = sgd(hvd, parameters)
    for _ in range(2):
        backward(hvd, parameters)
        with pytest.raises(AssertionError, match=r"was called after loss\.backward\(\) but before optimizer\.step\(\)"):
            optimizer.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
    assert_all(parameters, -total(hvd) / hvd.size() * 2)


@rank_test(n=[1, 2], door="torch")
def test_one_backward_too_many(hvd):
    parameters = weights(SMALL)
    optimizer = sgd(hvd, parameters, named_parameters=[("bias", parameters[0])], backward_passes_per_step=2)
    for _ in range(2):
        backward(hvd, parameters)
    with pytest.raises(AssertionError, match=r"gradient of bias.*backward_passes_per_step=2"):
        backward(hvd, parameters)
    with contextlib.suppress(ValueError):  # the third pass has changed what was being reduced
        optimizer.synchronize()
    optimizer.zero_grad()
    backward(hvd, parameters)
    optimizer.step()
    assert_all(parameters, -total(hvd) / hvd.size())


@rank_test(n=[2, 3], door="torch")
def test_a_look_at_the_groups_on_one_rank(hvd):
    """Rank 0 alone logs its rate before the step, the others are in the next operation already."""
    import torch

    parameters = weights(SMALL, LARGE)
    optimizer = sgd(hvd, parameters, op=hvd.Sum)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            optimizer.zero_grad()
            backward(hvd, parameters)
            if hvd.rank() == 0:
                assert optimizer.param_groups[0]["lr"] == 1.0
            assert hvd.allreduce(torch.tensor(float(hvd.rank())), op=hvd.Max) == hvd.size() - 1
            optimizer.step()
    assert_all(parameters, -2 * total(hvd))


@rank_test(n=[2, 3], door="torch")
def test_gradients_that_are_reduced_already_are_not_added_up_again(hvd):
    """Of a sum of sums nothing good can come; an average of averages stays one."""
    for op in ("Sum", "Average"):
        parameters = weights(SMALL, LARGE)
        optimizer = sgd(hvd, parameters, op=getattr(hvd, op))
        backward(hvd, parameters)
        optimizer.synchronize()
        if op == "Average":
            backward(hvd, parameters[:1])
            optimizer.step()
            assert_all(parameters[1:], -total(hvd) / hvd.size())
            assert_all(parameters[:1], -2 * total(hvd) / hvd.size())
        else:
            with pytest.raises(AssertionError, match="reduced already"):
                backward(hvd, parameters[:1])


@rank_test(n=2, door="torch")
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_second_backward_of_other_parameters_does_not_add_up_the_first_s_again(hvd, count):
    first, other = weights(count, count)
    optimizer = sgd(hvd, [first, other], op=hvd.Sum)
    backward(hvd, [first])
    optimizer.synchronize()
    backward(hvd, [other])
    with pytest.raises(AssertionError, match=r"parameter\.0\.0 was reduced already"):
        optimizer.step()


# Mixed precision's scaler


def scaler(scale=1.0):
    import torch

    made = torch.amp.GradScaler("cpu", init_scale=scale)
    made.scale(torch.zeros(()))  # it knows its device from the first loss
    return made


@rank_test(n=2, door="torch")
def test_steps_that_a_loss_scaler_skips_leave_sums_right(hvd):
    """Gradients are reduced, not used, and zeroed by whoever does so, in whatever way."""
    parameters = weights(SMALL, LARGE)
    model = torch_module(parameters)
    optimizer = sgd(hvd, parameters, op=hvd.Sum)
    ways = (
        optimizer.zero_grad,
        lambda: optimizer.zero_grad(set_to_none=False),
        model.zero_grad,
        lambda: model.zero_grad(set_to_none=False),
    )
    for zero in ways:
        backward(hvd, parameters, float("inf") if hvd.rank() == 1 else 1.0)
        scaler().step(optimizer)
        zero()
        backward(hvd, parameters)
        optimizer.step()
        optimizer.zero_grad()
    assert_all(parameters, -len(ways) * total(hvd))


@rank_test(n=[1, 2, 3], door="torch")
def test_gradients_are_reduced_when_a_scaler_has_unscaled_them(hvd):
    """Also of a rank that has none of its own, after a step that was skipped."""
    parameters = weights(SMALL, LARGE)
    model = torch_module(parameters)
    optimizer = sgd(hvd, parameters, op=hvd.Sum)
    for factor, active in ((float("inf"), True), (4.0, hvd.rank() == 0)):
        model.zero_grad()
        if active:
            backward(hvd, parameters, factor)
        scaling = scaler(4.0)
        scaling.unscale_(optimizer)
        if active and factor == 4.0:
            assert [p.grad[0].item() for p in parameters] == [1.0, 1.0]
        scaling.step(optimizer=optimizer)
    assert_all(parameters, -1.0)


# Parameters that come later


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_parameters_added_after_wrapping(hvd, op):
    """Also where the first step afterwards lacks gradients on one rank, and where old gradients are kept."""
    first, later = weights(SMALL, LARGE), weights(3, LARGE)
    optimizer = sgd(hvd, first, op=getattr(hvd, op))
    value = total(hvd) if op == "Sum" else total(hvd) / hvd.size()
    backward(hvd, first)
    optimizer.step()
    optimizer.add_param_group({"params": later, "lr": 2.0})
    optimizer.zero_grad(set_to_none=False)
    backward(hvd, later if hvd.rank() == 0 else first + later)
    optimizer.step()
    without_first_rank = value - (1 if op == "Sum" else 1 / hvd.size())
    assert_all(first, -value - without_first_rank)
    assert_all(later, -2 * value)


@rank_test(n=2, door="torch")
def test_parameters_added_at_a_wrong_moment_or_in_a_wrong_way(hvd):
    first, later = weights(SMALL), weights(3)
    optimizer = sgd(hvd, first)
    backward(hvd, first)
    with pytest.raises(AssertionError, match=r"before step\(\)"):
        optimizer.add_param_group({"params": later})
    optimizer.step()
    optimizer.param_groups[0]["params"].append(later[0])
    backward(hvd, later)
    with pytest.raises(ValueError, match="add_param_group"):
        optimizer.step()


# Ranks that differ


@rank_test(n=[2, 3], door="torch")
def test_models_that_differ_are_named_on_every_rank(hvd):
    import torch

    from farandole.errors import PlanMismatchError

    last = hvd.size() - 1
    odd = hvd.rank() == last

    def named(**shapes):
        return [(name, torch.nn.Parameter(torch.zeros(shape))) for name, shape in shapes.items()]

    cases = {
        "shape": (named(a=3, b=(4, 2) if odd else 4), rf"rank 0 has 'b' float32 \(4,\), rank {last} has 'b' .*\(4, 2\)"),
        "name": (named(a=3, **{"x" if odd else "b": 4}), f"rank 0 has 'b'.*rank {last} has 'x'"),
        "count": (named(a=3, **({"b": 4} if odd else {})), f"rank 0 has 1 .*rank {last} has 2 .*'b'"),
    }
    for kind, (pairs, message) in cases.items():
        with pytest.raises(PlanMismatchError, match=message):
            sgd(hvd, [p for _, p in pairs], named_parameters=pairs)
        assert hvd.allreduce(torch.ones(2)).tolist() == [1, 1], kind
    wide = [torch.nn.Parameter(torch.zeros(3, dtype=torch.float64 if odd else torch.float32))]
    with pytest.raises(PlanMismatchError, match=f"rank 0 has .*float32.*rank {last} has .*float64"):
        sgd(hvd, wide)
    turned = [torch.nn.Parameter(torch.zeros(3, 4).t() if odd else torch.zeros(4, 3))]
    with pytest.raises(PlanMismatchError, match=f"rank {last} has .*strides"):
        sgd(hvd, turned)


@rank_test(n=2, door="torch")
def test_a_compressor_of_ones_own_is_refused(hvd):
    class Tenth(hvd.Compression.none):
        @classmethod
        def compress(cls, tensor):
            return tensor / 10, tensor.dtype

    with pytest.raises(ValueError, match=r"Tenth.*use Compression\.none, Compression\.fp16 or Compression\.bf16"):
        sgd(hvd, weights(SMALL), compression=Tenth)


@rank_test(n=[2, 3], door="torch")
def test_optimizers_that_differ_are_named_on_every_rank(hvd):
    import torch

    from farandole.errors import PlanMismatchError

    odd = hvd.rank() == hvd.size() - 1
    with pytest.raises(PlanMismatchError, match=f"rank 0 has SGD.*rank {hvd.size() - 1} has Adam"):
        hvd.DistributedOptimizer((torch.optim.Adam if odd else torch.optim.SGD)(weights(SMALL), lr=0.1))
    with pytest.raises(PlanMismatchError, match=r"op=Average.*op=Sum"):
        sgd(hvd, weights(SMALL), op=hvd.Sum if odd else hvd.Average)
    with pytest.raises(PlanMismatchError, match=r"compression=None.*compression=float16"):
        sgd(hvd, weights(SMALL), compression=hvd.Compression.fp16 if odd else hvd.Compression.none)
    parameters = weights(SMALL)
    optimizer = sgd(hvd, parameters)
    backward(hvd, parameters)
    optimizer.step()
    assert_all(parameters, -total(hvd) / hvd.size())


# Process sets


@rank_test(n=2, door="torch")
def test_a_model_that_one_rank_cannot_plan_is_not_counted(hvd):
    import torch

    if hvd.rank() == 1:
        odd = torch.nn.Parameter(torch.zeros(2).to(torch.float8_e5m2), requires_grad=False)
        with pytest.raises(ValueError, match="float8"):
            sgd(hvd, [odd])
    parameters = weights(SMALL)
    step_with(hvd, sgd(hvd, parameters), parameters)
    assert_all(parameters, -1.5)


@rank_test(n=3, door="torch")
def test_an_optimizer_of_some_ranks(hvd):
    """Two sets train at their own pace: neither waits for the other."""
    ends, middle = hvd.add_process_set([0, 2]), hvd.add_process_set([1])
    parameters = weights(SMALL, LARGE)
    optimizer = sgd(hvd, parameters, process_set=middle if hvd.rank() == 1 else ends)
    steps = 5 if hvd.rank() == 1 else 2
    for _ in range(steps):
        optimizer.zero_grad()
        backward(hvd, parameters)
        optimizer.step()
    assert_all(parameters, -2.0 * steps)  # the mean of 1 and 3, and 2 alone
    loss = optimizer.step(lambda: float(hvd.rank() + 1))
    assert loss == 2.0
    hvd.barrier()
    assert hvd.remove_process_set(ends)
    assert hvd.remove_process_set(middle)


@rank_test(n=3, door="torch")
@pytest.mark.parametrize("op", ["Average", "Sum", "Adasum"])
def test_a_rank_outside_the_set_steps_with_its_own_gradients(hvd, op):
    ends = hvd.add_process_set([0, 2])
    parameters = weights(SMALL, LARGE)
    optimizer = sgd(hvd, parameters, process_set=ends, op=getattr(hvd, op))
    assert ends.included() == (hvd.rank() != 1)
    for _ in range(5 if hvd.rank() == 1 else 2):
        optimizer.zero_grad()
        backward(hvd, parameters)
        optimizer.step()
    if hvd.rank() == 1:
        with pytest.raises(ValueError, match="does not include this rank"):
            hvd.allreduce(parameters[0], process_set=ends)
        assert_all(parameters, -10.0)
    elif op != "Adasum":
        assert_all(parameters, {"Average": -4.0, "Sum": -8.0}[op])
    hvd.barrier()
    assert hvd.remove_process_set(ends)


# What an optimizer holds


@rank_test(n=2, door="torch", shipped=True)
def test_a_dropped_optimizer_gives_its_threads_and_memory_back(hvd):
    from pathlib import Path

    def mapped():
        return Path("/proc/self/maps").read_text().count("/dev/shm/#")  # files without a name

    def held():
        """Threads and mapped files, once those that go by themselves have gone."""
        found = None
        while found != (now := (threading.active_count(), mapped())):
            found = now
            time.sleep(0.5)
        return now

    parameters = weights(SMALL, LARGE)
    optimizer = sgd(hvd, parameters)
    gc.collect()
    before = held()
    assert before[1] > 0
    for _ in range(5):
        optimizer = sgd(hvd, parameters)
        optimizer.zero_grad()
        backward(hvd, parameters)
        optimizer.step()
    optimizer.zero_grad()
    gc.collect()
    assert held() == before


@rank_test(n=[1, 2], door="torch", timeout=60)
def test_optimizers_and_groups_of_parameters_may_come_and_go_all_day(hvd):
    """What is gone leaves nothing: no hooks, no records, no memory."""
    import torch

    parameters = weights(SMALL)

    def come_and_go(times):
        for _ in range(times):
            optimizer = sgd(hvd, parameters)
            for _ in range(2):
                backward(hvd, parameters)
                optimizer.step()
                optimizer.zero_grad()
                optimizer.add_param_group({"params": weights(1)})
        del optimizer
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    runtime = hvd.global_process_set.runtime()
    tracemalloc.start()
    try:
        come_and_go(5)
        first, *_, last = [come_and_go(10) for _ in range(4)]
    finally:
        tracemalloc.stop()
    assert last - first < 50_000  # bytes, for 90 plans; a list of what they were alone would be more
    hooks = []
    torch.Tensor.register_post_accumulate_grad_hook(parameters[0], lambda p: hooks.append(len(p._post_accumulate_grad_hooks)))
    parameters[0].sum().backward()
    assert hooks == [1]
    sgd(hvd, parameters)
    assert len(hvd.describe()["plans"]) <= 3
    assert len(runtime.steps_done) <= 3 and len(runtime.plans.ended) <= 3  # which the watchdog reports


def test_an_optimizer_may_be_collected_wherever_its_own_threads_are():
    """They collect garbage at every call they make here, so also with their plan's lock in their hands."""
    script = """
        import gc, threading, time
        import torch
        import farandole.torch as hvd

        def collect(frame, event, argument):
            if event == "call":
                gc.collect()

        hvd.init()
        parameters = [torch.nn.Parameter(torch.zeros(size)) for size in (5, 300_000, 300_000, 300_000)]
        gc.freeze()
        gc.disable()
        before = threading.active_count()
        threading.setprofile(collect)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0), team=hvd.Team(threads=2))
        optimizer.itself = optimizer
        sum(p.sum() for p in parameters).backward()
        del optimizer
        hvd.barrier()
        while threading.active_count() > before + 1:  # one that stays ends the others' threads
            time.sleep(0.01)
    """
    run_ranks(2, script, timeout=120)
