"""The same run gives the same bits: again, with any number of threads, and however arrays travel within the node.

Three ranks, because two cannot be added in a wrong order.
"""

import pytest

KINDS = {"direct": "direct", "window": "window", "none": "mpi"}
"""FARANDOLE_NODE_EXCHANGE, and what a plan says it uses."""


def train(hvd, **options):
    """A digest of the weights after training with noise that differs between ranks."""
    import hashlib

    import torch

    torch.manual_seed(1)
    sizes = {torch.float32: [7, 300_000], torch.float64: [140_000, 5], torch.bfloat16: [600_000, 11]}
    parameters = [torch.randn(n, dtype=kind).requires_grad_() for kind, counts in sizes.items() for n in counts]
    parameters += [torch.randn(40).requires_grad_() for _ in range(100)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1, momentum=0.9), **options)
    torch.manual_seed(100 + hvd.rank())
    for step in range(3):
        optimizer.zero_grad()
        used = [p for i, p in enumerate(parameters) if (i + step + hvd.rank()) % 5]
        sum((torch.rand(()).to(p.dtype) * p * p).sum().float() for p in used).backward()
        optimizer.step()
    digest = hashlib.blake2b()
    for p in parameters:
        digest.update(p.detach().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def trained_digests(hvd):
    import os

    found = {f"{threads} threads": train(hvd, team=hvd.Team(threads=threads)) for threads in (0, 1, 2)}
    found["fp16"] = train(hvd, compression=hvd.Compression.fp16)
    for exchange, kind in KINDS.items():
        os.environ["FARANDOLE_NODE_EXCHANGE"] = exchange
        found[exchange] = train(hvd)
        found[f"fp16 {exchange}"] = train(hvd, compression=hvd.Compression.fp16)
        assert hvd.describe()["plans"][-1]["exchange"] == kind
    return found


@pytest.mark.more
def test_runs_repeat_bit_for_bit(ranks):
    run = ranks(3, trained_digests, door="torch", timeout=90)
    first = run[0]
    assert run == [first] * 3
    assert ranks(3, train, door="torch") == [first["1 threads"]] * 3
    compressed = {digest for name, digest in first.items() if "fp16" in name}
    plain = {digest for name, digest in first.items() if "fp16" not in name}
    assert len(plain) == len(compressed) == 1
    assert plain != compressed
