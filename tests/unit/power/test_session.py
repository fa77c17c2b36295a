"""`with energy("train"):` in one process: who measures, regions within regions, forks, threads and the sampler's cost."""

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import farandole
from farandole.errors import SettingsError
from farandole.observe import (
    energy,
    energy_of_node,
    forget_energy,
    measure_idle,
    process,
    recording,
    timeline,
)
from farandole.observe.power import Sampler, find_sensors
from powertree import Machine, steady

# How exact figures are is tested where the clock is the test's own. Here a busy machine may read a counter late.
ROUGHLY = 0.2


@pytest.fixture(autouse=True)
def _anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("FARANDOLE_POWER_ROOT", "FARANDOLE_POWER_PHASES", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    yield
    process.set_local_rank(None)
    forget_energy()


@pytest.fixture
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with one package, whose counter the test moves."""
    machine = Machine(tmp_path / "machine")
    zone = machine.rapl("0", "package-0", steady(0.0))
    zone.path.write_text("1000000000")
    monkeypatch.setenv("FARANDOLE_POWER_ROOT", str(machine.root))
    return zone.path


def spend(counter: Path, joules: float, seconds: float = 0.25) -> None:
    """In even steps, as a real counter moves."""
    first_uj = int(counter.read_text())
    began_s = time.monotonic()
    while (share := min((time.monotonic() - began_s) / seconds, 1.0)) < 1.0:
        move(counter, first_uj + round(joules * share * 1e6))
        time.sleep(0.002)
    move(counter, first_uj + round(joules * 1e6))


def move(counter: Path, value_uj: int) -> None:
    with counter.open("r+") as file:  # in place, in one write: nobody reads half a number
        file.write(f"{value_uj:010d}")


def test_a_region_takes_what_its_counter_counted(counter: Path) -> None:
    with farandole.observe.energy("train") as used:
        spend(counter, 20.0)
    assert used.energy_j == pytest.approx(20.0, rel=ROUGHLY)
    assert used.energy.total.provenance == "measured-component"
    assert str(used).startswith(f"train: {used.duration_s:.2f} s, ") and "measured-component" in str(used)


def test_regions_by_name(counter: Path) -> None:
    with energy("epoch"):
        with energy("step"):
            spend(counter, 12.0)
        spend(counter, 5.0)
        with energy("step"):
            spend(counter, 7.0)
    node = energy_of_node()
    assert node is not None
    found = {phase.name: (phase.times, phase.total.energy_j) for phase in node.phases}
    assert found == {"epoch": (1, pytest.approx(24.0, rel=ROUGHLY)), "step": (2, pytest.approx(19.0, rel=ROUGHLY))}
    assert node.whole.total.energy_j == pytest.approx(24.0, rel=ROUGHLY)


def test_idle_power_is_subtracted(counter: Path) -> None:
    moving = threading.Thread(target=spend, args=(counter, 20.0, 2.0))
    moving.start()
    measure_idle(0.8)
    moving.join()
    with energy("train") as used:
        spend(counter, 20.0, 0.5)
    total = used.energy.total
    assert total.idle_w == pytest.approx(10.0, rel=ROUGHLY)
    assert total.above_idle_j == pytest.approx(20.0 - used.duration_s * 10.0, rel=ROUGHLY)
    node = energy_of_node()
    assert node is not None and [phase.name for phase in node.phases] == ["train"]


def test_no_thread_runs_between_regions(counter: Path) -> None:
    with energy("one"):
        assert any(thread.name == "farandole-power" for thread in threading.enumerate())
    assert not any(thread.name == "farandole-power" for thread in threading.enumerate())


def test_only_the_first_rank_of_a_node_measures(counter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    with energy("train") as used:
        pass
    assert used.energy_j is None
    assert used.energy.total.reason == "measured by the first rank of this node"
    assert energy_of_node() is None and recording() is None and measure_idle(0.1) is None
    process.set_local_rank(0)  # as init() says it
    with energy("train") as used:
        spend(counter, 3.0)
    assert used.energy_j == pytest.approx(3.0, rel=ROUGHLY)


def test_a_forked_child_measures_for_itself(counter: Path) -> None:
    with energy("parent"):
        child = os.fork()
        if child == 0:
            with energy("child"):
                pass
            node = energy_of_node()
            os._exit(0 if node and [phase.name for phase in node.phases] == ["child"] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_that_leaves_its_parents_region_measures_nothing(
    counter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "phases.jsonl"
    monkeypatch.setenv("FARANDOLE_POWER_PHASES", str(told))
    child = -1
    try:
        with energy("parent"):
            child = os.fork()
    finally:
        if child == 0:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert told.read_text().count("parent") == 1


def test_a_region_that_fails_is_still_measured(counter: Path) -> None:
    with pytest.raises(ValueError, match="boom"):
        with energy("train"):
            spend(counter, 3.0)
            raise ValueError("boom")
    node = energy_of_node()
    assert node is not None and node.phases[0].total.energy_j == pytest.approx(3.0, rel=ROUGHLY)


def test_a_rank_that_samples_from_init_on_counts_all_of_its_time(
    counter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(timeline.POWER_VARIABLE, "1")
    timeline.start(tmp_path / "trace.json", rank=0, size=1, host="n")
    spend(counter, 10.0)
    with energy("train"):
        spend(counter, 5.0)
    spend(counter, 5.0)
    node = energy_of_node()
    timeline.stop()
    assert node is not None and node.whole.total.energy_j == pytest.approx(20.0, rel=ROUGHLY)
    assert node.as_dict()["whole"]["total"]["window"] == "init to end"


def test_regions_are_spans_of_the_timeline(counter: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    timeline.start(path, rank=0, size=1, host="n")
    with energy("train") as used:
        time.sleep(0.01)
    timeline.stop()
    merged = timeline.merge_parts(path)
    assert merged is not None
    (span,) = [event for event in json.loads(merged.read_text()) if event["ph"] == "X"]
    assert span["name"] == "train"
    assert span["dur"] == pytest.approx(used.duration_s * 1e6, abs=0.01)


def test_without_sensors_it_warns_once_that_power_is_modelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine(tmp_path)
    machine.proc()
    monkeypatch.setenv("FARANDOLE_POWER_ROOT", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with energy("train") as used:
                time.sleep(0.01)
    assert [record.getMessage() for record in caplog.records] == [
        "power is modelled, not measured: this machine shows no power sensor"
    ]
    assert used.energy.total.provenance == "modelled"


def test_wrong_use_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="measure_idle"):
        measure_idle(0)
    with pytest.raises(SettingsError, match="when the region has ended"):
        _ = energy("train").energy
    monkeypatch.setenv("FARANDOLE_POWER_ROOT", "/no/such/folder")
    with pytest.raises(SettingsError, match="FARANDOLE_POWER_ROOT=/no/such/folder is no folder"):
        with energy("train"):
            pass


def test_the_sampler_keeps_its_pace_and_says_what_it_cost(counter: Path) -> None:
    found = find_sensors(Path(os.environ["FARANDOLE_POWER_ROOT"]), {})
    sampler = Sampler(found, interval_s=0.02)
    with sampler:
        time.sleep(0.5)
    sampler.close()
    cost = sampler.recording().cost
    assert cost.running_s > 0.45
    assert cost.samples + cost.missed == pytest.approx(cost.running_s / 0.02 + 2, abs=3)
    assert 0 < cost.cpu_s < cost.running_s
