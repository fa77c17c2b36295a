"""Elastic states and samplers on ranks, and functions that go on after errors all ranks have outlived."""

import pytest

from ranktest import rank_test

EVERY = [1, 2, 3]


def shares_of_all(hvd, sampler):
    """Every rank's share, dealt like cards: in the order in which the ranks together take samples."""
    shares = hvd.allgather_object(list(sampler))
    assert len({len(share) for share in shares}) == 1
    return [index for turn in zip(*shares) for index in turn]


# ElasticSampler


@rank_test(n=EVERY, door="torch")
@pytest.mark.parametrize("samples", [0, 1, 2, 12, 13, 20])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_sampler_deals_every_sample_out_once_but_for_a_few_to_fill_up(hvd, samples, shuffle):
    sampler = hvd.elastic.ElasticSampler(range(samples), shuffle=shuffle)
    dealt = shares_of_all(hvd, sampler)
    assert sorted(dealt[:samples]) == list(range(samples))
    assert len(dealt) == len(sampler) * hvd.size() < samples + hvd.size()
    assert shuffle or dealt[:samples] == list(range(samples))


@rank_test(n=EVERY, door="torch")
def test_epochs_are_shuffled_differently_and_seeds_too(hvd):
    first = hvd.elastic.ElasticSampler(range(50))
    other = hvd.elastic.ElasticSampler(range(50), seed=3)
    orders = [shares_of_all(hvd, first), shares_of_all(hvd, other)]
    first.set_epoch(1)
    orders.append(shares_of_all(hvd, first))
    assert len({tuple(order) for order in orders}) == 3


@rank_test(n=EVERY, door="torch")
@pytest.mark.parametrize("samples", [20, 23])
def test_an_interrupted_epoch_goes_on_with_the_batches_it_would_have_had(hvd, samples):
    whole = list(hvd.elastic.ElasticSampler(range(samples)))
    sampler = hvd.elastic.ElasticSampler(range(samples))
    for batch in range(3):
        sampler.record_batch(batch, 2)
    again = hvd.elastic.ElasticSampler(range(samples))
    again.load_state_dict(sampler.state_dict())
    assert whole[:6] + list(again) == whole
    sampler.set_epoch(1)
    assert sampler.state_dict() == {"epoch": 1, "processed_num": 0}
    assert len(sampler) == len(whole)


@rank_test(n=EVERY, door="torch")
def test_what_one_number_of_ranks_has_begun_is_dealt_to_another(hvd):
    sampler = hvd.elastic.ElasticSampler(range(23))
    whole = shares_of_all(hvd, sampler)[:23]
    sampler.load_state_dict({"epoch": 0, "processed_num": 2 * 5})  # two batches of five samples over all ranks
    assert shares_of_all(hvd, sampler)[:13] == whole[10:]
    sampler.load_state_dict({"epoch": 0, "processed_num": 24})  # the last batch was filled up
    assert list(sampler) == []


# TorchState


def training(hvd, distributed=True, seed=None):
    """A model and an optimizer with momentum, after a step, different on every rank unless told the seed."""
    import torch

    torch.manual_seed(hvd.rank() if seed is None else seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    return model, optimizer


def step(model, optimizer):
    import torch

    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()


def numbers(model, optimizer, buffers=True):
    """Every number of both, but for a model's buffers where each rank has its own."""
    import torch

    held = model.state_dict().values() if buffers else model.parameters()
    momenta = [state["momentum_buffer"] for state in optimizer.state_dict()["state"].values()]
    return torch.cat([t.detach().double().flatten() for t in [*held, *momenta]]).tolist()


@rank_test(n=EVERY, door="torch")
def test_sync_gives_every_rank_what_rank_0_has(hvd):
    import torch

    model, optimizer = training(hvd)
    sampler = hvd.elastic.ElasticSampler(range(9))
    sampler.load_state_dict({"epoch": 2 + hvd.rank(), "processed_num": 3})
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(hvd.rank()):
        schedule.step()
    others = {"schedule": schedule, "sampler": sampler, "epoch": hvd.rank(), "seen": {hvd.rank()}}
    state = hvd.elastic.TorchState(model, optimizer, **others)
    mine = numbers(model, optimizer)
    state.sync()
    assert numbers(model, optimizer) == hvd.broadcast_object(mine, 0)
    assert (state.epoch, state.seen, schedule.last_epoch) == (0, {0}, 0)
    assert sampler.state_dict() == {"epoch": 2, "processed_num": 3}
    assert len(shares_of_all(hvd, sampler)) == -(-6 // hvd.size()) * hvd.size()
    assert state.model is model and state.schedule is schedule
    assert optimizer.param_groups[0]["lr"] == 0.1


@rank_test(n=EVERY, door="torch")
def test_restore_goes_back_to_the_last_commit_as_often_as_needed(hvd):
    model, optimizer = training(hvd, seed=1)
    state = hvd.elastic.TorchState(model, optimizer, epoch=0)
    state.sync()
    step(model, optimizer)
    state.epoch = 1
    state.commit()
    committed = numbers(model, optimizer)
    for _ in range(2):
        step(model, optimizer)
        state.epoch += 1
        assert numbers(model, optimizer) != committed
        state.restore()
        assert (numbers(model, optimizer), state.epoch) == (committed, 1)


@rank_test(n=[1, 2], door="torch")
def test_a_commit_on_disk_holds_arrays_and_what_else_there_is_and_comes_back(hvd):
    import shutil
    import tempfile
    from pathlib import Path

    import torch

    from farandole.elastic.commits import Commits

    def trained(seed, **values):
        model, optimizer = training(hvd, seed=seed)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
        sampler = hvd.elastic.ElasticSampler(range(9))
        return hvd.elastic.TorchState(model, optimizer, schedule=schedule, sampler=sampler, **values)

    folder = Path(hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0))
    mine = trained(1, epoch=3, seen={1, 2})
    mine.sampler.record_batch(0, 2)
    first, second = Commits(folder, 0, print), Commits(folder, 0, print)
    mine.resume(first)
    mine.commit()
    first.close()
    if hvd.rank() == 0:
        arrays, objects = folder.glob("run0/*/arrays.safetensors"), folder.glob("run0/*/objects.pickle")
        assert next(arrays).stat().st_size > sum(p.nbytes for p in mine.model.parameters())
        assert b"seen" in (pickled := next(objects).read_bytes()) and b"weight" not in pickled
    again = trained(2, epoch=0, seen=set())
    again.resume(second)
    again.sync()
    assert numbers(again.model, again.optimizer) == numbers(mine.model, mine.optimizer)
    assert (again.epoch, again.seen) == (3, {1, 2})
    for name in ("schedule", "sampler"):
        assert getattr(again, name).state_dict() == getattr(mine, name).state_dict()
    hvd.barrier()
    second.close()
    shutil.rmtree(folder, ignore_errors=True)


@rank_test(n=[1, 2], door="torch")
def test_a_model_put_in_the_place_of_another_is_the_one_that_is_kept(hvd):
    state = hvd.elastic.TorchState(*training(hvd, distributed=False, seed=1))
    state.model, state.optimizer = training(hvd, distributed=False, seed=2)
    state.save()
    kept = numbers(state.model, state.optimizer)
    step(state.model, state.optimizer)
    state.restore()
    assert numbers(state.model, state.optimizer) == kept


# elastic.run


@rank_test(n=[2, 3], door="torch")
def test_training_goes_on_from_the_last_commit_after_ranks_disagreed(hvd):
    import torch

    def trained(fails_at):
        model, optimizer = training(hvd, seed=5)
        optimizer.zero_grad()
        state = hvd.elastic.TorchState(model, optimizer, step=0)
        calls, resets = [], []

        @hvd.elastic.run
        def train(state, steps, *, scale):
            calls.append(state.step)
            while state.step < steps:
                torch.manual_seed(100 * hvd.rank() + state.step)
                (scale * model(torch.randn(8, 4)).pow(2).mean()).backward()
                if state.step == fails_at and len(calls) == 1:
                    # Gradients are on their way at this moment.
                    hvd.allreduce(torch.ones(hvd.rank() + 1), name="disagreement")
                optimizer.step()
                optimizer.zero_grad()
                state.step += 1
                if state.step % 2 == 0:
                    state.commit()
            return state.step

        state.register_reset_callbacks([lambda: resets.append(state.step)])
        assert train(state, 6, scale=2.0) == 6
        assert train.__name__ == "train"
        return numbers(model, optimizer, buffers=False), calls, resets

    unbroken, calls, resets = trained(fails_at=None)
    assert (calls, resets) == ([0], [])
    broken, calls, resets = trained(fails_at=3)
    assert (calls, resets) == ([0, 2], [2])
    assert broken == unbroken


@rank_test(n=[2, 3], door="torch")
def test_ranks_that_disagree_again_and_again_end(hvd):
    import torch

    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append(state.step)
        hvd.allreduce(torch.ones(hvd.rank() + 1), name="disagreement")

    with pytest.raises(RuntimeError, match="ranks differ in shape"):
        train(hvd.elastic.ObjectState(step=3))
    assert calls == [3] * 4


@rank_test(n=[2, 3], door="torch")
def test_one_rank_alone_that_gives_up_takes_the_others_back_with_it(hvd):
    import torch

    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append(state.step)
        state.step = 5
        if len(calls) == 1 and hvd.rank() == 1:
            raise hvd.HorovodInternalError("a batch was bad")
        return hvd.allreduce(torch.ones(1), name="together", op=hvd.Sum).item()

    assert train(hvd.elastic.ObjectState(step=0)) == hvd.size()
    assert calls == [0, 0]


@rank_test(n=[1, 2], door="torch")
def test_after_an_error_that_says_a_rank_is_gone_only_a_new_start_helps(hvd):
    from farandole.errors import RankFailedError

    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append(1)
        raise RankFailedError("rank 1 has exited")

    with pytest.raises(hvd.HorovodInternalError):
        train(hvd.elastic.ObjectState())
    assert len(calls) == 1


@rank_test(n=[1, 2])
def test_numpy_users_have_elastic_runs_too(fd):
    import numpy as np

    from farandole import elastic

    @elastic.run
    def add_up(state):
        while state.step < 3:
            state.total = fd.allreduce(state.total + 1, op=fd.Average, name="total")
            state.step += 1
            state.commit()
        return state.total.tolist()

    assert add_up(elastic.ObjectState(step=fd.rank(), total=np.zeros(2))) == [3.0, 3.0]


@rank_test(n=[1, 2])
def test_a_state_of_the_users_own_keeps_to_horovods_contract(fd):
    from farandole import elastic

    class Own(elastic.State):
        def __init__(self, value):
            super().__init__(bcast_object=fd.broadcast_object, get_rank=fd.rank)
            self.value = self.kept = value

        def save(self):
            self.kept = self.value

        def restore(self):
            self.value = self.kept

        def sync(self):
            self.value = self.kept = fd.broadcast_object(self.value, 0)

    @elastic.run
    def train(state):
        state.value += 1
        state.commit()
        return state.kept

    assert train(Own(10 + fd.rank())) == 11
