"""States taken apart and put together again."""

from collections import Counter, OrderedDict

import numpy as np
import pytest

from farandole.checkpoint.tree import Tensor, flatten, unflatten, without_tensors
from farandole.errors import CheckpointError


def there_and_back(tree):
    import json

    flat = flatten(tree)
    return unflatten(json.loads(json.dumps(flat.skeleton, allow_nan=False)), flat.arrays)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"a": [1, 2.5, True, None, "x"], "b": {"c": ()}},
        {"betas": (0.9, [0.99]), 3: "three", (1, 2): None},
        {"$array": "a key that looks like a mark"},
        {"best": float("inf"), "worst": float("-inf")},
        Counter({30: 1, 60: 2}),
        {"big": 2**130, "tiny": 5e-324, "third": 1 / 3},
    ],
)
def test_values_come_back_as_they_were(tree) -> None:
    found = there_and_back({"tree": tree})["tree"]
    assert found == tree
    assert type(found) is type(tree)


def test_not_a_number_comes_back() -> None:
    assert np.isnan(there_and_back({"loss": float("nan")})["loss"])


def test_arrays_go_by_the_place_they_had() -> None:
    tree = OrderedDict(model={"w": np.ones((2, 3))}, state={0: {"m": np.zeros(2)}})
    flat = flatten(tree)
    assert list(flat.arrays) == ["model/w", "state/0/m"]
    assert there_and_back(tree)["state"][0]["m"] is tree["state"][0]["m"]


def test_two_arrays_whose_places_read_alike_are_kept_apart() -> None:
    tree = {"a/b": np.zeros(1), "a": {"b": np.ones(1)}}
    found = there_and_back(tree)
    assert (found["a/b"][0], found["a"]["b"][0]) == (0, 1)


def test_tensors_stay_apart_from_arrays() -> None:
    found = there_and_back({"t": Tensor(np.ones(2)), "a": np.ones(2)})
    assert isinstance(found["t"], Tensor)
    assert isinstance(without_tensors(found)["t"], np.ndarray)


def test_numbers_of_numpy_become_python_s() -> None:
    assert there_and_back({"x": np.int64(3), "y": np.float32(0.5)}) == {"x": 3, "y": 0.5}


def test_what_cannot_be_kept_is_named_with_its_place() -> None:
    with pytest.raises(CheckpointError, match=r"sampler/seen is a set"):
        flatten({"sampler": {"seen": {1, 2}}})
