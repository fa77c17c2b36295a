"""What loading a workload's files will give is known before they are read."""

from pathlib import Path

import pytest

from farandole.data.make import make
from farandole.workloads import find_workload
from farandole.workloads.finding import tables_of

SIZES = {"nt3": (40, 60), "p1b1": (40, 20), "p1b2": (40, 160), "p1b3": (2000, 40)}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("some", [0, 7])
def test_what_a_workload_will_load(tmp_path: Path, name: str, some: int) -> None:
    rows, features = SIZES[name]
    make(tables_of(name), tmp_path, rows=rows, features=features, threads=1)
    known = find_workload(name)
    parameters = known.parameters(feature_subsample=some, **({"cell_features": ("all",)} if name == "p1b3" else {}))  # type: ignore[call-arg]
    found = known.expected(parameters, tables_of(name).shapes(tmp_path, known.roles(parameters)))
    loaded = known.load(parameters, tmp_path)
    assert found[0] == loaded.features
    if name == "p1b3":  # which does not know which doses it will keep
        assert loaded.nbytes <= found[1] < loaded.nbytes + 24 * rows
    else:
        parts = {id(part): part for part in (loaded.train, loaded.validation, loaded.test)}.values()
        labels = sum(part.target.nbytes for part in parts if part.target is not None)
        assert found[1] == loaded.nbytes - labels
