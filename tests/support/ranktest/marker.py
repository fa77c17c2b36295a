"""`rank_test`: a function of a test file that runs on ranks and is one test for each number of them."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from onrank import AS_SHIPPED
from ranktest.batch import call_of
from ranktest.calls import Call, Outcome, Place

__all__ = ["RankSpec", "rank_test"]


class AsShipped(int):
    """A number of ranks that run as users' do, with nothing that makes tests faster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSpec:
    """How a function wants to be run."""

    body: Callable[..., Any]
    door: str
    env: Mapping[str, str]
    timeout_s: float

    def place(self, n: int, backend: str | None = None) -> Place:
        env = dict(self.env) if backend is None else {"KERAS_BACKEND": backend, **self.env}
        if isinstance(n, AsShipped):
            env[AS_SHIPPED] = "1"
        return Place(ranks=n, door=self.door, env=tuple(sorted(env.items())))

    def call(self, name: str, arguments: Mapping[str, Any]) -> Call:
        wanted = list(inspect.signature(self.body).parameters)[1:]
        if set(wanted) != set(arguments):
            raise pytest.UsageError(
                f"{name}: the function takes {wanted} after its first argument, parametrize gives {list(arguments)}. "
                "Fixtures stay in the parent: use the `ranks` fixture to hand their values to ranks."
            )
        return call_of(self.body, name, kwargs=arguments, timeout_s=self.timeout_s)


def rank_test(
    *,
    n: int | Sequence[int],
    door: str = "numpy",
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    backends: Sequence[str] = (),
    more: Sequence[str] = (),
    shipped: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Run the function on `n` ranks; its first argument is the initialised door, the rest come from parametrize.

    With `backends`, once for each of Keras' backends named; those in `more` are marked so, and so is torch on 3 ranks where there are
    fewer as well: three such ranks on two cores take as long as all others. Functions with the same `n`, `door`, backend and `env`
    share a launch, whichever files they are in. One that makes no progress for `timeout` seconds is killed and named.
    With `shipped`, once more on two ranks as users start them: with torch's compiler, all frameworks and Python's garbage collection.
    """
    counts = [n] if isinstance(n, int) else list(n)
    own = ("rank_outcome", "n", "backend") if backends else ("rank_outcome", "n")

    def decorate(body: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(body)
        def item(rank_outcome: Callable[[], Outcome], n: int, **_: Any) -> None:
            failure = rank_outcome().failure
            if failure is not None:
                pytest.fail(failure, pytrace=False)

        given = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in own]
        taken = list(inspect.signature(body).parameters.values())[1:]
        item.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            given + [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in taken]
        )
        item.rank_body = body  # type: ignore[attr-defined]
        item.rank_spec = RankSpec(body=body, door=door, env=env or {}, timeout_s=timeout)  # type: ignore[attr-defined]
        # The harness has its own limits, and the first test of a batch pays for the whole launch.
        slow = [3] if door == "torch" and len(counts) > 1 else []
        numbers = _marked(counts, slow) + [pytest.param(AsShipped(2), id="as-shipped")] * shipped
        marks = [pytest.mark.timeout(0), pytest.mark.parametrize("n", numbers, ids=lambda count: f"n{count}")]
        if backends:
            marks.append(pytest.mark.parametrize("backend", _marked(backends, more)))
        for mark in marks:
            mark(item)
        return item

    return decorate


def _marked(values: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    return [pytest.param(value, marks=pytest.mark.more) if value in more else value for value in values]
