"""The pytest side: which rank tests were collected, and the fixtures that run them."""

from collections.abc import Callable
from typing import Any

import pytest

from ranktest.batch import Batch, run_function
from ranktest.calls import Outcome, Place
from ranktest.marker import RankSpec

__all__ = ["pytest_collection_finish", "rank_outcome", "ranks"]

BATCHES = pytest.StashKey[dict[str, Batch]]()
"""The batch of each rank test, by node id."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Only what was selected runs: a batch holds the rank tests that remain after -k, -m and node ids."""
    places: dict[Place, Batch] = {}
    batches: dict[str, Batch] = {}
    for item in session.items:
        spec = getattr(getattr(item, "obj", None), "rank_spec", None)
        if isinstance(spec, RankSpec) and isinstance(item, pytest.Function):
            arguments: dict[str, Any] = dict(item.callspec.params)
            place = spec.place(arguments.pop("n"), arguments.pop("backend", None))
            batches[item.nodeid] = places.setdefault(place, Batch(place))
            batches[item.nodeid].add(spec.call(item.nodeid, arguments))
    session.config.stash[BATCHES] = batches


@pytest.fixture
def rank_outcome(request: pytest.FixtureRequest) -> Callable[[], Outcome]:
    """How this rank test went; the first test of a batch that asks starts the ranks."""
    nodeid = request.node.nodeid
    return lambda: request.config.stash[BATCHES][nodeid].outcome(nodeid)


@pytest.fixture
def ranks() -> Callable[..., list[Any]]:
    """`ranks(n, function, *args, door="numpy", env=None, timeout=120)`: what the function returned on each rank."""
    return run_function
