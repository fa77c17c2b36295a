"""Models that torch.compile has compiled train as they do without it, on one rank and on several."""

import pytest

from ranktest import rank_test


@rank_test(n=2, door="torch", timeout=90)
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_a_compiled_model_trains_as_the_plain_one_on_the_whole_batch(hvd, compiler):
    """Both backends trace the model as inductor does, and need no C++ compiler."""
    import torch
    from torch import nn

    def model():
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(12, 30), nn.Tanh(), nn.Dropout(0.0), nn.Linear(30, 3))

    plain, ours = model(), model()
    compiled = torch.compile(ours, backend=compiler)
    reference = torch.optim.Adam(plain.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(compiled.parameters(), lr=0.01), named_parameters=compiled.named_parameters()
    )
    hvd.broadcast_parameters(compiled.state_dict(), root_rank=0)
    for _ in range(4):
        x = torch.randn(5 * hvd.size(), 12)
        rows = slice(5 * hvd.rank(), 5 * hvd.rank() + 5)
        for net, trainer, batch in ((plain, reference, x), (compiled, optimizer, x[rows])):
            trainer.zero_grad()
            net(batch).square().mean().backward()
            trainer.step()
    for mine, expected in zip(ours.parameters(), plain.parameters()):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-6)  # another order of sums
    assert hvd.check_buffers_match([p.detach() for p in ours.parameters()]) == 0
