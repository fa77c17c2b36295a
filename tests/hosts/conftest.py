"""Tests on hosts of their own; where none can be made they are skipped, and say why."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from hosts import Network, lacking


@pytest.fixture
def make_hosts() -> Iterator[Callable[..., Network]]:
    """`make_hosts(rate="2gbit", clocks={"beta": 1000})`: alpha and beta, until the test ends."""
    reason = lacking()
    if reason:
        pytest.skip(reason)
    with ExitStack() as until_the_end:

        def make(**options: Any) -> Network:
            return until_the_end.enter_context(Network(["alpha", "beta"], **options))

        yield make


@pytest.fixture
def hosts(make_hosts: Callable[..., Network]) -> Network:
    """Two hosts, 2 Gbit/s between them."""
    return make_hosts(rate="2gbit")
