"""The table of algorithms: shipped, settable, checked."""

import pytest

from farandole.comm.node.algorithms import AlgorithmTable
from farandole.errors import SettingsError

INFINITY = float("inf")


def test_the_shipped_table():
    table = AlgorithmTable()
    assert [table.for_node(n) for n in (0, 64 * 1024, 64 * 1024 + 1, 1 << 40)] == [
        "flat",
        "flat",
        "sliced",
        "sliced",
    ]
    assert [table.for_cross(n, nodes=2) for n in (0, 1 << 30)] == ["exchange", "scatter"]
    assert table.for_cross(100, nodes=17) == "mpi"


def test_the_environment_sets_it(monkeypatch):
    monkeypatch.setenv("FARANDOLE_NODE_ALGORITHMS", "1000=sliced,2e6=flat,*=sliced")
    monkeypatch.setenv("FARANDOLE_CROSS_ALGORITHMS", "*=mpi")
    table = AlgorithmTable.from_environment()
    assert table.node == ((1000, "sliced"), (2e6, "flat"), (INFINITY, "sliced"))
    assert table.for_node(1001) == "flat"
    assert table.for_cross(5, nodes=2) == "mpi"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("*=rings", "unknown node algorithm 'rings'; known: flat, sliced"),
        ("flat", "write bytes=name pairs, e.g. 65536=flat,*=sliced"),
        ("many=flat,*=sliced", "write bytes=name pairs"),
        ("100=flat", "the last one be `*`"),
        ("200=flat,100=sliced,*=flat", "sizes must rise"),
    ],
)
def test_what_cannot_work_is_refused(monkeypatch, text, told):
    monkeypatch.setenv("FARANDOLE_NODE_ALGORITHMS", text)
    with pytest.raises(SettingsError) as caught:
        AlgorithmTable.from_environment()
    assert told in str(caught.value)


def test_an_empty_table_is_refused():
    with pytest.raises(SettingsError, match="sizes must rise"):
        AlgorithmTable(node=())


def test_where_results_go(monkeypatch):
    table = AlgorithmTable()
    assert [table.for_result(n, neighbours=2) for n in (1 << 21, (1 << 21) + 1)] == ["place", "window"]
    assert table.for_result(1 << 20, neighbours=3) == "window"
    monkeypatch.setenv("FARANDOLE_RESULT_ALGORITHMS", "*=place")
    assert AlgorithmTable.from_environment().for_result(1 << 30, neighbours=64) == "place"
