"""`farandole bench comm` without ranks: sizes, scopes, figures and the fitted alpha and beta."""

from pathlib import Path

import numpy as np
import pytest

from farandole.errors import SettingsError
from farandole.study.comm.fit import fit
from farandole.study.comm.results import bus_factor, check_writable, figures, write
from farandole.study.comm.scopes import known_cuts, scopes
from farandole.study.comm.settings import DEFAULT_SIZES, CommSettings, parse_sizes, size_text
from farandole.study.comm.turns import Timing

SIZES = parse_sizes(DEFAULT_SIZES)


def test_sizes_are_words_and_ranges() -> None:
    assert parse_sizes("8,4K,1MiB, 3 kb") == [8, 4096, 1 << 20, 3072]
    assert parse_sizes("8:100") == [8, 32, 100]
    assert parse_sizes("8:128,1G") == [8, 32, 128, 1 << 30]
    assert (SIZES[0], SIZES[-1]) == (8, 256 << 20)


@pytest.mark.parametrize("text", ["", "x", "8,", "-8", "1.5K", "8:4", "8:16:32", "0:8", "8T"])
def test_what_is_no_size_is_shown_with_an_example(text: str) -> None:
    with pytest.raises(SettingsError, match="8:256M"):
        parse_sizes(text)


@pytest.mark.parametrize("sizes", [[3], [8, 5 << 30]])
def test_sizes_out_of_range_are_refused(sizes: list[int]) -> None:
    with pytest.raises(SettingsError, match=r"4 bytes .* to 4 GiB"):
        CommSettings(sizes=sizes)


def test_unknown_collectives_and_no_time_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"scan: use some of allreduce,broadcast"):
        CommSettings(sizes=[8], collectives=["allreduce", "scan"])
    with pytest.raises(SettingsError, match="--seconds 0"):
        CommSettings(sizes=[8], seconds=0.0)


def test_sizes_are_written_as_people_say_them() -> None:
    told = [size_text(n) for n in (8, 65536, 3 << 19, 256 << 20, 4 << 30)]
    assert told == ["8 B", "64 KiB", "1.5 MiB", "256 MiB", "4 GiB"]


def test_one_node_has_one_scope_and_several_have_three() -> None:
    assert scopes([[0, 1, 2]]) == {"node": [0, 1, 2]}
    assert scopes([[0], [1], [2]]) == {"across": [0, 1, 2]}
    assert scopes([[0, 2], [1, 3, 4]]) == {"node": [1, 3, 4], "across": [0, 1], "all": [0, 1, 2, 3, 4]}


def test_cuts_follow_the_table_that_the_engine_reduces_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARANDOLE_NODE_ALGORITHMS", "4096=flat,*=sliced")
    monkeypatch.setenv("FARANDOLE_CROSS_ALGORITHMS", "1048576=exchange,*=scatter")
    one_node, two_nodes = known_cuts([2]), known_cuts([3, 2])
    assert 4096 in one_node["allreduce", "gradient"]
    assert 4096 not in two_nodes["allreduce", "gradient"]
    assert 2 << 20 in two_nodes["allreduce", "gradient"]
    assert 2 << 20 in two_nodes["allreduce", "by name"]


def test_a_line_is_found_whatever_the_sizes() -> None:
    (piece,) = fit(SIZES, [5e-6 + 2e-10 * n for n in SIZES])
    assert piece.alpha_s == pytest.approx(5e-6)
    assert piece.beta_s_per_byte == pytest.approx(2e-10)
    assert piece.up_to_bytes is None
    assert piece.largest_error < 1e-9


def test_small_sizes_count_as_much_as_large_ones() -> None:
    noise = np.random.default_rng(0).normal(1.0, 0.03, len(SIZES))
    (piece,) = fit(SIZES, [(5e-6 + 2e-10 * n) * wrong for n, wrong in zip(SIZES, noise)])
    assert piece.alpha_s == pytest.approx(5e-6, rel=0.05)
    assert piece.beta_s_per_byte == pytest.approx(2e-10, rel=0.05)
    assert 0.01 < piece.rms_error < 0.05


def test_a_change_of_algorithm_that_is_known_ends_a_piece_there() -> None:
    seconds = [1e-6 + 1e-9 * n if n <= 65536 else 3e-5 + 1e-10 * n for n in SIZES]
    first, second = fit(SIZES, seconds, cuts=[65536])
    assert first.up_to_bytes == 65536
    assert (first.alpha_s, second.alpha_s) == (pytest.approx(1e-6), pytest.approx(3e-5))
    assert second.beta_s_per_byte == pytest.approx(1e-10)


def test_a_bend_that_nobody_told_of_is_found() -> None:
    seconds = [2e-6 + 1e-10 * n if n <= 1 << 20 else 2e-3 + 9e-10 * n for n in SIZES]
    first, second = fit(SIZES, seconds)
    assert first.up_to_bytes is not None
    assert 512 << 10 <= first.up_to_bytes <= 2 << 20
    assert second.beta_s_per_byte == pytest.approx(9e-10)
    assert max(first.largest_error, second.largest_error) < 1e-6


def test_a_cut_that_leaves_too_few_sizes_is_none() -> None:
    assert len(fit([8, 32, 128, 512], [1e-6] * 4, cuts=[32])) == 1


@pytest.mark.parametrize(
    ("sizes", "seconds"), [([8], [1e-6]), ([8, 1024, 4096], [3e-6, 2e-6, 1e-6]), ([8, 1024, 4096], [1e-9, 1e-6, 9e-6])]
)
def test_neither_alpha_nor_beta_is_negative(sizes: list[int], seconds: list[float]) -> None:
    (piece,) = fit(sizes, seconds)
    assert piece.alpha_s >= 0
    assert piece.beta_s_per_byte >= 0
    assert piece.seconds(sizes[-1]) > 0


def test_bandwidth_on_the_bus_does_not_depend_on_how_many_ranks_share_it() -> None:
    # A ring of p ranks over links of 1 GB/s takes 2 (p - 1) / p of the bytes through each link.
    for ranks in (2, 3, 8):
        timing = Timing(calls=1, seconds=[2 * (ranks - 1) / ranks * 1e-3] * 5)
        row = figures("allreduce", 1_000_000, ranks, "MPI", timing)
        assert row["bus_bytes_per_s"] == pytest.approx(1e9)
    assert bus_factor("broadcast", 8) == 1.0
    assert bus_factor("allgather", 4) == bus_factor("reducescatter", 4) == 0.75


def test_figures_are_of_all_turns() -> None:
    row = figures("broadcast", 1000, 2, "MPI", Timing(calls=7, seconds=[1.0, 3.0, 2.0, 5.0, 4.0]))
    assert (row["min_s"], row["median_s"], row["p95_s"]) == (1.0, 3.0, pytest.approx(4.8))
    assert (row["turns"], row["calls_per_turn"]) == (5, 7)


def test_a_file_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "comm.json"
    path.write_text("old")
    check_writable(path, "--json")
    assert path.read_text() == "old"
    write({"kind": "new"}, path)
    assert "new" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]
