"""Ranks that read one file: one parse and one copy on each node, the same numbers everywhere."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from ranktest import rank_test, run_ranks, shared_folder

ROWS, GENES = 500, 3000


def a_table(fd, suffix=".csv", rows=ROWS):
    """A file that rank 0 makes, and what it holds: a label and some numbers a row."""
    folder = shared_folder(fd)
    values = np.random.default_rng(3).integers(-9999, 9999, (rows, GENES)) / 8
    path = folder / f"table{suffix}"
    if fd.rank() == 0:
        lines = [f"{row % 2}," + ",".join(map(repr, line)) for row, line in enumerate(values.tolist())]
        text = "\n".join(lines).encode()
        path.write_bytes(gzip.compress(text, 1) if suffix.endswith(".gz") else text)
    fd.barrier()
    return path, values.astype(np.float32)


def mapping_of(array):
    """(inode, permissions) of the mapping an array lies in."""
    address = array.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, permissions, _, _, inode, *_ = line.split(maxsplit=5)
        start, stop = (int(part, 16) for part in bounds.split("-"))
        if start <= address < stop:
            return int(inode), permissions
    raise AssertionError("not mapped")


@rank_test(n=[1, 2, 3])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_ranks_share_one_copy_and_change_only_their_own(fd, suffix):
    from farandole.data import read_matrix

    path, expected = a_table(fd, suffix)
    table = read_matrix(path, columns=[0], cache=False)
    assert table.values.flags.c_contiguous and np.array_equal(table.values, expected)
    assert table.columns[0].tolist() == [row % 2 for row in range(ROWS)]
    inode, permissions = mapping_of(table.values)
    if fd.size() > 1:
        assert inode > 0 and permissions == "rw-p"
        assert len(set(fd.allgather_object(inode))) == 1
    table.values[5, :10] = fd.rank()
    fd.barrier()
    assert (table.values[5, :10] == fd.rank()).all()
    assert np.array_equal(table.values[6:], expected[6:])


@rank_test(n=[2, 3])
def test_the_ranks_of_a_node_parse_each_block_once(fd):
    from unittest.mock import patch

    from farandole.data import parse, read_matrix, text

    taken = []
    original = parse.Parser.parse

    def counted(self, block, row, out):
        taken.append(block.offset + block.start)
        return original(self, block, row, out)

    path, expected = a_table(fd)
    with patch.object(parse.Parser, "parse", counted), patch.object(text, "BLOCK_BYTES", 100_000):
        table = read_matrix(path, columns=[0], cache=False)
    assert np.array_equal(table.values, expected)
    of_all = fd.allgather_object(taken)
    everything = sorted(start for taken_there in of_all for start in taken_there)
    assert len(everything) == len(set(everything)) > 50
    assert all(taken_there for taken_there in of_all)


@rank_test(n=[2, 3])
def test_a_cache_file_is_written_once_and_mapped_by_all(fd):
    from farandole.data import cache, read_matrix

    path, expected = a_table(fd)
    for _ in range(3):
        table = read_matrix(path, columns=[0])
        assert np.array_equal(table.values, expected) and table.columns[0].sum() == ROWS // 2
    found = [entry.state for entry in cache.entries(path.parent)]
    assert found == ["current"], found
    (kept,) = (path.parent / cache.FOLDER).iterdir()
    assert mapping_of(table.values)[0] == kept.stat().st_ino
    table.values[:] = -1
    fd.barrier()
    assert np.array_equal(read_matrix(path, columns=[0]).values, expected)


@rank_test(n=[2, 3])
def test_every_rank_gets_the_error_and_the_engine_lives_on(fd):
    from farandole.data import read_matrix
    from farandole.errors import DataError, MismatchError

    path, expected = a_table(fd)
    bad = path.with_name("bad.csv")
    if fd.rank() == 0:
        lines = path.read_text().splitlines()
        lines[400] = lines[400].replace(",", ",x", 1)
        lines[450] = lines[450] + ",1"
        bad.write_text("\n".join(lines))
    fd.barrier()
    with pytest.raises(DataError, match=r"bad\.csv, line 401, column 2: .* is not a number"):
        read_matrix(bad, columns=[0])
    with pytest.raises(DataError, match="there is no such file"):
        read_matrix(path if fd.rank() else path.parent / "elsewhere" / path.name, columns=[0])
    with pytest.raises(MismatchError, match=r"rank 0 asks for table\.csv .*'float32'.* rank 1 for .*'float64'"):
        read_matrix(path, columns=[0], dtype="float32" if fd.rank() == 0 else "float64")
    if fd.rank() == 0:
        assert np.array_equal(read_matrix(path, columns=[0], together=False, cache=False).values, expected)
    assert np.array_equal(read_matrix(path, columns=[0], cache=False).values, expected)
    assert fd.allreduce(np.ones(3), op=fd.Sum).tolist() == [fd.size()] * 3


@rank_test(n=[1, 2, 3])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_a_shard_is_this_ranks_rows(fd, suffix):
    from farandole.data import read_matrix

    path, expected = a_table(fd, suffix, rows=101)
    for cached in (False, False, True):
        table = read_matrix(path, columns=[0], shard=True, cache=path.parent if cached else False)
        shards = fd.allgather_object((table.values.copy(), table.columns[0]))
        assert np.array_equal(np.concatenate([values for values, _ in shards]), expected)
        assert np.concatenate([labels for _, labels in shards]).tolist() == [row % 2 for row in range(101)]
        assert max(len(v) for v, _ in shards) - min(len(v) for v, _ in shards) <= 1
        if not cached:
            read_matrix(path, columns=[0], cache=path.parent)


NODES = """
import os
os.environ["FARANDOLE_NODE"] = os.environ["NODES_OF_RANKS"].split(",")[rank_number()]
import numpy as np
import farandole as fd
from farandole.comm.node.shared import SharingUnavailable
from farandole.data import parse, read_matrix, together
from farandole.errors import DataError

fd.init()
parses = 0
original = parse.Parser.parse
def counted(self, *arguments):
    global parses
    parses += 1
    return original(self, *arguments)
parse.Parser.parse = counted
together._MESSAGE_BYTES = 1000
found = {}
for name in ("plain.csv", "packed.csv.gz"):
    for across in ("parse", "broadcast", "auto"):
        parses = 0
        table = read_matrix(name, columns=["label"], across=across, cache=False)
        found[f"{name} {across}"] = [parses > 0, table.values.tolist(), table.names, table.columns["label"].tolist()]
for _ in range(2):
    parses = 0
    read_matrix("plain.csv", columns=["label"], across="broadcast")
    fd.barrier()
found["cached"] = parses
try:
    read_matrix("bad.csv", across="broadcast")
except DataError as error:
    found["error"] = str(error)
def without_room(*arguments, **options):
    raise SharingUnavailable("no room")
if os.environ["FARANDOLE_NODE"] == "b":
    together.SharedBlock = without_room
found["no room"] = read_matrix("plain.csv", columns=["label"], across="broadcast", cache=False).values.tolist()
result(found)
"""


@pytest.mark.parametrize("nodes", ["a,a,b,b", "a,b,a"])
def test_one_node_parses_and_sends_or_each_parses_its_own(tmp_path, nodes):
    values = [[row + column / 4 for column in range(7)] for row in range(40)]
    lines = ["label," + ",".join(f"g{i}" for i in range(7))]
    lines += [f"case{row % 3}," + ",".join(map(str, line)) for row, line in enumerate(values)]
    text = "\n".join(lines) + "\n"
    (tmp_path / "plain.csv").write_text(text)
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "bad.csv").write_text("1,2\n3\n")
    of_ranks = nodes.split(",")
    run = run_ranks(len(of_ranks), NODES, env={"NODES_OF_RANKS": nodes}, cwd=tmp_path)
    labels = [f"case{row % 3}" for row in range(40)]
    for rank, (place, found) in enumerate(zip(of_ranks, run.results)):
        assert found.pop("cached") == 0
        assert found.pop("no room") == values
        assert found.pop("error").endswith("bad.csv, line 2, has 1 columns, expected 2 as in the first line (delimiter ',')")
        first_of_node = of_ranks.index(place) == rank
        for case, (parsed, *table) in found.items():
            assert table == [values, [f"g{i}" for i in range(7)], labels], case
            # One block: the first rank of the node takes it. With "broadcast" only node a does.
            assert parsed == (first_of_node and (place == "a" or "broadcast" not in case)), (case, rank)
    assert len(list((tmp_path / ".farandole-cache").iterdir())) == 1
