"""Starting all ranks from the same state, dealing data out, and scaling the learning rate."""

from itertools import chain

import pytest

from ranktest import rank_test


def values_of_rank(hvd, shape, rank=None):
    import torch

    generator = torch.Generator().manual_seed(hvd.rank() if rank is None else rank)
    return torch.randn(shape, generator=generator)


def model_of_rank(hvd, rank=None):
    """A model with buffers, an integer one among them, and a large matrix, different on every rank."""
    import torch
    from torch import nn

    with torch.random.fork_rng():
        torch.manual_seed(50 + (hvd.rank() if rank is None else rank))
        model = nn.Sequential(nn.Linear(4, 300), nn.BatchNorm1d(300), nn.Linear(300, 1000))
        model(torch.randn(8, 4))
        model[1].num_batches_tracked += hvd.rank() if rank is None else rank
    return model


# broadcast_parameters


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("root", ["first", "last"])
def test_broadcast_parameters_of_a_state_dict_and_of_pairs(hvd, root):
    import torch

    root = 0 if root == "first" else hvd.size() - 1
    expected = model_of_rank(hvd, root)
    by_state, by_pairs, by_list, nameless = (model_of_rank(hvd) for _ in range(4))
    hvd.broadcast_parameters(by_state.state_dict(), root_rank=root)
    hvd.broadcast_parameters(by_pairs.named_parameters(), root_rank=root)
    hvd.broadcast_parameters(list(by_list.named_parameters()), root)
    hvd.broadcast_parameters(list(nameless.parameters()), root)
    for name, value in expected.state_dict().items():
        assert torch.equal(by_state.state_dict()[name], value), name
    for model in (by_pairs, by_list, nameless):
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), expected.parameters()))
        assert all(p.requires_grad and p.is_leaf for p in model.parameters())


@rank_test(n=[2, 3], door="torch")
def test_broadcast_parameters_in_another_order_on_every_rank(hvd):
    """A dictionary is sorted, so that its order does not matter."""
    names = [f"layer{i}" for i in range(5)]
    turned = names[hvd.rank() :] + names[: hvd.rank()]
    tensors = {name: values_of_rank(hvd, 3) for name in turned}
    hvd.broadcast_parameters(tensors, root_rank=1)
    expected = {name: values_of_rank(hvd, 3, rank=1).tolist() for name in names}
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == expected


@rank_test(n=[2, 3], door="torch")
def test_broadcast_parameters_of_any_layout_and_kind(hvd):
    import torch

    kinds = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64]
    tensors = {str(kind): (values_of_rank(hvd, 9) * 10).abs().to(kind) for kind in kinds}
    tensors["scalar"] = values_of_rank(hvd, ())
    tensors["empty"] = values_of_rank(hvd, (0, 3))
    tensors["turned"] = values_of_rank(hvd, (500, 700)).t()
    tensors["gaps"] = values_of_rank(hvd, (6, 8))[::2, ::3]
    tensors["channels last"] = values_of_rank(hvd, (4, 3, 2, 2)).contiguous(memory_format=torch.channels_last)
    strides = {name: tensor.stride() for name, tensor in tensors.items()}
    hvd.broadcast_parameters({**tensors, "not a tensor": hvd.rank()}, root_rank=0)
    assert {name: tensor.stride() for name, tensor in tensors.items()} == strides
    assert hvd.check_buffers_match([tensor.contiguous() for tensor in tensors.values()]) == 0
    assert torch.equal(tensors["turned"], values_of_rank(hvd, (500, 700), rank=0).t())


@rank_test(n=2, door="torch")
def test_broadcast_parameters_of_something_else(hvd):
    import torch

    for wrong in ("weights", torch.ones(3), 5, None, [torch.ones(3), 5], [("a", torch.ones(1), 2)]):
        with pytest.raises(ValueError, match=r"model\.state_dict\(\) or model\.named_parameters\(\)"):
            hvd.broadcast_parameters(wrong, root_rank=0)


@rank_test(n=3, door="torch")
def test_broadcast_within_a_process_set(hvd):
    """The root is a number of the world, not of the set."""
    ends = hvd.add_process_set([0, 2])
    tensors = {"weight": values_of_rank(hvd, 4)}
    if ends.included():
        hvd.broadcast_parameters(tensors, root_rank=2, process_set=ends)
    root = 2 if ends.included() else hvd.rank()
    assert tensors["weight"].tolist() == values_of_rank(hvd, 4, rank=root).tolist()
    hvd.barrier()
    hvd.remove_process_set(ends)


# broadcast_optimizer_state

OPTIONS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.5},
    "Adam": {"lr": 0.1, "weight_decay": 0.5, "amsgrad": True},
    "AdamW": {"lr": 0.1},
    "Adagrad": {"lr": 0.1, "weight_decay": 0.5},
    "RMSprop": {"lr": 0.1, "momentum": 0.9, "centered": True},
    "Rprop": {"lr": 0.1},
    "Adafactor": {"lr": 0.1},
}


def optimizer_of(model, kind, **more):
    import torch

    return getattr(torch.optim, kind)(model.parameters(), **OPTIONS[kind], **more)


def train(model, optimizer, steps, rank):
    import torch

    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 4, generator=generator)).square().mean().backward()
        optimizer.step()


def flat(value, path=""):
    """Every leaf of a state, by its path; tensors as type, shape and bytes."""
    import torch

    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    else:
        is_tensor = isinstance(value, torch.Tensor)
        return {path: (value.dtype, value.shape, value.numpy().tobytes()) if is_tensor else value}
    return {key: leaf for name, item in items for key, leaf in flat(item, f"{path}.{name}").items()}


@rank_test(n=[2, 3], door="torch")
@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("wrapped", [False, True])
def test_broadcast_optimizer_state_gives_the_root_s(hvd, kind, wrapped):
    """The root has trained and has another rate; the others have trained less, or not at all."""
    root = hvd.size() - 1
    model = model_of_rank(hvd)
    optimizer = optimizer_of(model, kind)
    train(model, optimizer, steps=2 if hvd.rank() == root else hvd.rank(), rank=hvd.rank())
    if hvd.rank() == root:
        optimizer.param_groups[0]["lr"] = 0.07
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer)
    weights = [p.detach().clone() for p in model.parameters()]
    own = flat(optimizer.state_dict())
    hvd.broadcast_optimizer_state(optimizer, root_rank=root)
    states = hvd.allgather_object(flat(optimizer.state_dict()))
    assert states == [states[root]] * hvd.size()
    assert states[root][".param_groups.0.lr"] == 0.07
    assert hvd.rank() != root or states[root] == own
    assert all((p == w).all() for p, w in zip(model.parameters(), weights))


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("kind", OPTIONS)
def test_broadcast_optimizer_state_moves_no_weight(hvd, kind):
    """Also where no state exists yet, and a step to make it would decay the weights."""
    model = model_of_rank(hvd)
    optimizer = hvd.DistributedOptimizer(optimizer_of(model, kind))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=model)
    assert all((value == before[name]).all() for name, value in model.state_dict().items())
    train(model, optimizer, steps=1, rank=0)


@rank_test(n=[1, 2], door="torch")
def test_an_optimizer_without_a_state_gets_gradients_of_zeros(hvd):
    """Scripts made for Horovod use them without a look at whether there are any; frozen parameters have none."""
    import torch

    model = model_of_rank(hvd)
    frozen = next(model.parameters()).requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(optimizer_of(model, "SGD"))
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for p in model.parameters():
        assert p.grad is None if p is frozen else not p.grad.any()
    model(torch.ones(6, 4)).sum().backward()
    optimizer.step()
    assert frozen.grad is None


@rank_test(n=[1, 2], door="torch")
@pytest.mark.parametrize("zeroed", [False, True])
def test_an_optimizer_of_sparse_gradients_alone_gets_sparse_ones(hvd, zeroed):
    import torch

    table = torch.nn.Embedding(100, 4, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SparseAdam(table.parameters(), lr=0.1))
    hvd.broadcast_parameters(table.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    before = table.weight.detach().clone()
    for _ in range(2):
        if zeroed:
            optimizer.zero_grad(set_to_none=False)
        table(torch.tensor([hvd.rank(), 7])).sum().backward()
        optimizer.step()
        assert table.weight.grad.is_sparse
    changed = (table.weight != before).any(dim=1).nonzero().flatten().tolist()
    assert changed == [*range(hvd.size()), 7]


@rank_test(n=[2, 3], door="torch")
def test_ranks_that_start_from_the_root_s_state_stay_together(hvd):
    """Horovod's recipe, with a root that resumed from a checkpoint."""
    model = model_of_rank(hvd)
    optimizer = optimizer_of(model, "Adam")
    if hvd.rank() == 0:
        train(model, optimizer, steps=3, rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    train(model, optimizer, steps=3, rank=hvd.rank())
    assert hvd.check_buffers_match([p.detach() for p in model.parameters()]) == 0
    assert all(state["step"] == 6 for state in optimizer.state.values())


@rank_test(n=2, door="torch")
def test_rates_that_are_tensors_and_states_in_another_layout(hvd):
    import torch

    weight = torch.nn.Parameter(torch.ones(4, 3, 2, 2).contiguous(memory_format=torch.channels_last))
    optimizer = torch.optim.Adam([weight], lr=torch.tensor(0.1 * (hvd.rank() + 1)))
    if hvd.rank() == 1:
        weight.grad = values_of_rank(hvd, weight.shape).contiguous(memory_format=torch.channels_last)
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)
    states = hvd.allgather_object(flat(optimizer.state_dict()))
    assert states[0] == states[1]
    assert optimizer.param_groups[0]["lr"].item() == pytest.approx(0.2)


@rank_test(n=2, door="torch")
def test_lbfgs_cannot_be_broadcast(hvd):
    import torch

    with pytest.raises(ValueError, match="LBFGS"):
        hvd.broadcast_optimizer_state(torch.optim.LBFGS([torch.nn.Parameter(torch.ones(2))]), root_rank=0)


# shard


@rank_test(n=[1, 2, 3], door="torch")
def test_shards_cover_the_dataset_exactly_once(hvd):
    from torch.utils.data import TensorDataset

    rows = TensorDataset(values_of_rank(hvd, (12, 1)))
    orders = []
    for shuffle, epoch in ((False, 0), (True, 0), (True, 1)):
        sampler = hvd.shard(rows, shuffle=shuffle, seed=3)
        sampler.set_epoch(epoch)
        shards = hvd.allgather_object(list(sampler))
        assert [len(shard) for shard in shards] == [12 // hvd.size()] * hvd.size()
        assert sorted(chain(*shards)) == list(range(12))
        orders.append(shards)
    assert orders[0] != orders[1] != orders[2]


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("count", [10, 11, 13])
def test_shards_of_a_dataset_that_does_not_divide_have_equal_length(hvd, count):
    """Ranks take the same number of steps: the last samples are repeated, or left out if asked."""
    rows = range(count)
    filled = hvd.allgather_object(list(hvd.shard(rows)))
    assert len({len(shard) for shard in filled}) == 1
    assert set(chain(*filled)) == set(rows)
    assert sum(map(len, filled)) < count + hvd.size()
    cut = list(chain(*hvd.allgather_object(list(hvd.shard(rows, drop_last=True)))))
    assert len(cut) == len(set(cut)) == count - count % hvd.size()


@rank_test(n=3, door="torch")
def test_shards_within_a_process_set(hvd):
    ends = hvd.add_process_set([0, 2])
    mine = list(hvd.shard(range(8), shuffle=False, process_set=ends)) if ends.included() else []
    assert sorted(chain(*hvd.allgather_object(mine))) == list(range(8))
    hvd.remove_process_set(ends)


# Learning rates


def two_groups():
    import torch

    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    return torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.5}], lr=0.1)


@rank_test(n=[1, 2, 3], door="torch")
def test_learning_rates_scale_with_the_ranks(hvd):
    for rule, power in {"linear": 1, "sqrt": 1 / 2, "cbrt": 1 / 3, "none": 0}.items():
        optimizer = two_groups()
        hvd.scale_learning_rate(optimizer, rule)
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == pytest.approx([0.1 * hvd.size() ** power, 0.5 * hvd.size() ** power]), rule
    with pytest.raises(ValueError, match=r"'cubic'.*linear, sqrt, cbrt, none"):
        hvd.scale_learning_rate(two_groups(), "cubic")


@rank_test(n=[1, 2, 3], door="torch")
@pytest.mark.parametrize("rule", ["linear", "sqrt"])
def test_warmup_raises_the_scaled_rate_from_that_of_one_rank(hvd, rule):
    optimizer = hvd.DistributedOptimizer(two_groups())
    hvd.scale_learning_rate(optimizer, rule)
    scheduler = hvd.warmup(optimizer, steps=4, rule=rule)
    rates = []
    for _ in range(6):
        rates.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    most = hvd.size() if rule == "linear" else hvd.size() ** 0.5
    climb = [1 + (most - 1) * min(done, 4) / 4 for done in range(6)]
    assert [rate for rate, _ in rates] == pytest.approx([0.1 * factor for factor in climb])
    assert [rate for _, rate in rates] == pytest.approx([0.5 * factor for factor in climb])
