"""Training that outlives failures: states that are committed, and functions that go on from the last commit.

The framework-neutral part; `farandole.torch.elastic` adds models, optimizers and samplers.

    @elastic.run
    def train(state):
        for state.epoch in range(state.epoch, 10):
            ...
            state.commit()

    train(elastic.ObjectState(epoch=0))
"""

from farandole.elastic.running import run
from farandole.elastic.state import ObjectState, State

__all__ = ["ObjectState", "State", "run"]
