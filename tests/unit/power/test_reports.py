"""Traces that give the same figures again, idle power, tables, and jobs of several nodes."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from farandole.errors import DataError, SettingsError
from farandole.observe.power import (
    NodeEnergy,
    Provenance,
    Recording,
    as_text,
    combine,
    energy_of_ranks,
    node_energy,
    read_trace,
    write_trace,
)
from farandole.observe.power.recording import Phase, SamplerCost, read_phases
from farandole.observe.power.running import replay
from powertree import Machine, ramp, steady

SECONDS = [number / 10 for number in range(201)]
S = 1_000_000_000
# Recorded traces are in the repository's own words: see docs/power.md.
METER = {
    "name": "node", "part": "node", "sensor": "wall socket", "provenance": "measured-node", "kind": "energy", "unit": 3600.0,
}  # fmt: skip
HEADER = {
    "format": "farandole-power", "version": 1, "host": "n1", "machine": "m1", "interval_s": 1.0,
    "meters": [METER],
}  # fmt: skip


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    machine = Machine(tmp_path / "machine")
    machine.rapl("0", "package-0", ramp(30.0, 10.0), range_j=7_000.0, first_j=6_000.0, limit_w=200.0)
    machine.rapl("0:0", "dram", steady(8.0))
    made = machine.sampled(SECONDS)
    made.phases = [Phase("load", S, 4 * S), Phase("train", 5 * S, 9 * S), Phase("train", 11 * S, 19 * S)]
    made.idle = (0, S)
    return made


def test_a_replayed_trace_gives_the_same_figures(recording: Recording, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, recording)
    replayed = read_trace(path)
    assert node_energy(replayed).as_dict() == node_energy(recording).as_dict()
    assert replayed.replayed_from == str(path)
    assert [child.name for child in tmp_path.iterdir() if child.is_file()] == ["trace.jsonl"]


def test_a_trace_that_was_cut_off_keeps_what_is_whole(
    recording: Recording, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "trace.jsonl"
    write_trace(path, recording)
    text = path.read_text()
    path.write_text(text[: text.index("[0, 15000000000") + 9])
    assert len(read_trace(path).series[0]) == 150
    assert "its last line was cut off" in caplog.text


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "its first line is not that of a trace"),
        ("hello\n", "its first line is not that of a trace"),
        (json.dumps(HEADER | {"version": 9}), "version 1"),
        (json.dumps(HEADER | {"meters": [{"name": "x"}]}), "Record one with: farandole power --record"),
        (json.dumps(HEADER) + "\n[0, 1, 2, 3]\nwhat\n[0, 2, 3, 4]\n", "line 3: 'what' is no reading"),
    ],
)
def test_files_that_are_no_traces(tmp_path: Path, lines: str, said: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(lines)
    with pytest.raises(DataError, match=said):
        read_trace(path)


def traced(path: Path, *values: object) -> Path:
    path.write_text("\n".join(map(json.dumps, values)) + "\n")
    return path


def metered(**changed: object) -> dict[str, object]:
    return HEADER | {"meters": [METER | changed]}


ROWS = [[0, second * S, second * S, 40 + second] for second in range(5)]
RUN = {"phase": "run", "start_ns": S, "end_ns": 3 * S}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([HEADER, *ROWS, RUN | {"start_ns": "text"}], "line 7: start_ns is 'text', expected a whole number of nanoseconds"),
        ([HEADER, *ROWS, RUN | {"end_ns": None}], "line 7: end_ns is None, expected a whole number of nanoseconds"),
        ([HEADER, *ROWS, RUN | {"phase": 5}], "line 7: phase is 5, expected text"),
        ([HEADER, *ROWS, RUN | {"start_ns": 9 * S}], "line 7: end_ns is 3000000000, expected no less than the begin, 9000000000"),
        ([HEADER, *ROWS, {"idle": [2 * S, S]}], "line 7: the end of idle is 1000000000, expected no less than the begin"),
        ([HEADER, *ROWS, {"idle": [S, "x"]}], "line 7: the end of idle is 'x', expected a whole number of nanoseconds"),
        ([HEADER, *ROWS, {"idle": 5}], "line 7: '{\"idle\": 5}' is no reading, phase or cost"),
        ([HEADER, [0, 1, 1, 2**70], *ROWS], "line 2: the count is 1180591620717411303424, expected a whole number from 0 to 2^63"),
        ([HEADER, [0, 1, 1, -1], *ROWS], "line 2: the count is -1, expected a whole number from 0 to 2^63"),
        ([HEADER, [0, 1, 1, 1.5], *ROWS], "line 2: the count is 1.5, expected a whole number from 0 to 2^63"),
        ([HEADER, [0, 2**70, 1, 1], *ROWS], "line 2: monotonic_ns is 1180591620717411303424, expected a whole number of nano"),
        ([HEADER, [0, 1, "x", 1], *ROWS], "line 2: the time since 1970 is 'x', expected a whole number of nanoseconds"),
        ([HEADER, [-1, 1, 1, 1], *ROWS], "line 2: the meter's number is -1, expected 0 to 0"),
        ([HEADER, ["0", 1, 1, 1], *ROWS], "line 2: the meter's number is '0', expected 0 to 0"),
        ([HEADER, *ROWS, {"sampler": {"running_s": "long"}}], "line 7: running_s is 'long', expected a number from 0 on"),
        ([HEADER, *ROWS, {"sampler": {"samples": 1.5}}], "line 7: samples is 1.5, expected a whole number"),
        ([HEADER, *ROWS, {"sampler": {"beans": 1}}], "line 7: '{\"sampler\": {\"beans\": 1}}' is no reading"),
        ([metered(wraps_at="1"), *ROWS], "line 1: wraps_at is '1', expected a whole number"),
        ([metered(wraps_at=0), *ROWS], "line 1: wraps_at is 0, expected a whole number"),
        ([metered(ceiling_w="1"), *ROWS], "line 1: ceiling_w is '1', expected a number"),
        ([metered(unit="1"), *ROWS], "line 1: unit is '1', expected a number above 0"),
        ([metered(unit=0), *ROWS], "line 1: unit is 0, expected a number above 0"),
        ([metered(name=7), *ROWS], "line 1: name is 7, expected text"),
        ([metered(note=7), *ROWS], "line 1: note is 7, expected text"),
        ([metered(package=None), *ROWS], "line 1: package is None, expected text"),
        ([metered(sensor=["x"]), *ROWS], "line 1: sensor is ['x'], expected text"),
        ([metered(part="wall"), *ROWS], "line 1: part is 'wall', expected node, cpu, memory or gpu"),
        ([metered(kind=["x"]), *ROWS], "line 1: kind is ['x'], expected energy or power"),
        ([metered(provenance="guessed"), *ROWS], "line 1: provenance is 'guessed', expected measured-node, measured-component or modelled"),
        ([HEADER | {"host": 1}, *ROWS], "line 1: host is 1, expected text"),
        ([HEADER | {"interval_s": 0}, *ROWS], "line 1: interval_s is 0, expected a number above 0"),
        ([HEADER | {"interval_s": "0.1"}, *ROWS], "line 1: interval_s is '0.1', expected a number above 0"),
        ([HEADER | {"meters": 5}, *ROWS], "its first line is not that of a trace"),
        ([HEADER | {"refusals": [{"sensor": 1, "part": "cpu", "reason": "", "advice": ""}]}], "line 1: sensor is 1, expected text"),
        ([HEADER], "has neither readings nor phases"),
    ],
)
def test_wrong_values_of_a_trace_are_told_by_file_and_field(tmp_path: Path, values: list[object], said: str) -> None:
    path = traced(tmp_path / "trace.jsonl", *values)
    with pytest.raises(DataError, match=re.escape(said)) as raised:
        replay(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_a_trace_without_phases_is_all_of_its_readings(tmp_path: Path) -> None:
    node = replay(traced(tmp_path / "trace.jsonl", HEADER, *ROWS)).node
    assert (node.whole.name, node.whole.duration_s, node.phases) == ("all readings", 4.0, [])
    assert node.whole.total.energy_j == pytest.approx(4 * 3600.0)


def test_a_trace_somebody_else_wrote(tmp_path: Path) -> None:
    path = tmp_path / "meter.jsonl"
    rows = [[0, second * S, second * S, 40 + second // 4] for second in range(0, 101, 4)]
    phase = {"phase": "run", "start_ns": 10 * S, "end_ns": 90 * S}
    path.write_text("\n".join(map(json.dumps, [HEADER, *rows, phase])))
    node = node_energy(read_trace(path))
    assert node.whole.total.energy_j == pytest.approx(80 * 900.0)
    assert node.whole.total.source == "wall socket node"


def test_traces_into_nowhere(recording: Recording, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be written"):
        write_trace(tmp_path / "none" / "trace.jsonl", recording)


def test_phases_of_one_name_are_added_and_the_whole_is_their_union(recording: Recording) -> None:
    node = node_energy(recording)
    assert [(phase.name, phase.times, phase.duration_s) for phase in node.phases] == [("load", 1, 3.0), ("train", 2, 12.0)]
    energy = ramp(30.0, 10.0)
    expected = energy(9) - energy(5) + energy(19) - energy(11)
    assert node.phases[1].parts["cpu"].energy_j == pytest.approx(expected, rel=0.005)
    assert node.whole.duration_s == 15.0
    assert node.whole.total.energy_j == pytest.approx(sum(phase.total.energy_j or 0 for phase in node.phases))


def test_phases_of_two_processes_at_once_take_their_joules_once(recording: Recording) -> None:
    recording.phases = [Phase("train", 5 * S, 9 * S), Phase("train", 6 * S, 10 * S)]
    (train,) = node_energy(recording).phases
    assert (train.times, train.duration_s) == (2, 5.0)


def test_idle_power_is_subtracted(recording: Recording) -> None:
    node = node_energy(recording)
    memory, cpu = node.phases[0].parts["memory"], node.phases[0].parts["cpu"]
    assert memory.idle_w == pytest.approx(8.0, rel=0.005)
    assert memory.above_idle_j == pytest.approx(0.0, abs=0.1)
    energy = ramp(30.0, 10.0)
    assert cpu.above_idle_j == pytest.approx(energy(4) - energy(1) - 3 * 35.0, rel=0.005)
    assert node.phases[0].total.above_idle_j == pytest.approx(cpu.above_idle_j, abs=0.2)
    recording.idle = None
    assert node_energy(recording).phases[0].total.above_idle_j is None


def test_the_table(recording: Recording) -> None:
    text = as_text(node_energy(recording))
    assert "measured-component" in text.splitlines()[0]
    assert "package-0, dram" not in text
    assert "train (2x)" in text and "above idle J" in text
    assert "note: package-0: at its ceiling of 200 W" in text
    assert text.splitlines()[-1] == "sampler: 201 samples, one every 0.1 s, 0 missed"
    assert "~" not in text and "modelled" not in text.lower()


def test_the_sampler_tells_its_share_once_it_has_run_for_a_second(recording: Recording) -> None:
    recording.cost = SamplerCost(samples=2, running_s=0.02, cpu_s=0.002)
    short = node_energy(recording)
    assert short.as_dict()["sampler"]["share_of_a_core"] is None and "of a core" not in as_text(short)
    recording.cost = SamplerCost(samples=20, running_s=2.0, cpu_s=0.002)
    assert as_text(node_energy(recording)).endswith("0 missed; 0.10% of a core")


def test_what_is_remarked_of_the_total_is_noted(recording: Recording) -> None:
    package, memory = recording.meters
    recording.meters = [package, replace(memory, part="node", provenance=Provenance.NODE)]
    node = node_energy(recording)
    (remark,) = [one for one in node.as_dict()["whole"]["total"]["remarks"] if "more than the node" in one]
    assert f"note: {remark}" in as_text(node).splitlines()


def test_a_meter_that_is_left_out_is_noted_and_its_node_not_called_unmetered(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.rapl("0", "package-0", steady(200.0))
    machine.rapl("1", "psys", steady(0.0))
    made = machine.sampled(SECONDS)
    made.phases = [Phase("train", S, 4 * S)]
    node = node_energy(made)
    lines = as_text(node).splitlines()
    assert lines[0].endswith("3.00 s, 600.0 J, measured-component")
    assert "no meter of: memory, gpu" in lines
    assert "note: psys never moves, while other meters do: it is left out" in lines
    assert combine([node]).as_dict()["total"]["remarks"] == ["psys never moves, while other meters do: it is left out"]


def node(recording: Recording, host: str, machine: str) -> NodeEnergy:
    return node_energy(replace(recording, host=host, machine=machine))


def test_a_job_is_the_sum_of_its_machines(recording: Recording) -> None:
    one, two = node(recording, "a", "1"), node(recording, "b", "2")
    job = combine([one, None, two, None])
    assert [found.host for found in job.nodes] == ["a", "b"]
    assert job.total.energy_j == pytest.approx(2 * (one.whole.total.energy_j or 0))
    assert job.phases["train"].energy_j == pytest.approx(2 * (one.phases[1].total.energy_j or 0))
    assert job.total.duration_s == 15.0
    assert job.total.provenance == "measured-component"
    assert json.loads(json.dumps(job.as_dict()))["total"]["provenance"] == "measured-component"


def test_a_node_that_was_done_sooner_was_idle_for_its_own_time_alone(recording: Recording) -> None:
    one, two = node(recording, "a", "1"), node(replace(recording, phases=recording.phases[:1]), "b", "2")
    assert (one.whole.duration_s, two.whole.duration_s) == (15.0, 3.0)
    job = combine([one, two])
    assert job.total.above_idle_j == pytest.approx((one.whole.total.above_idle_j or 0) + (two.whole.total.above_idle_j or 0))
    assert job.total.as_dict()["above_idle_j"] == job.total.above_idle_j
    assert job.total.idle_w == pytest.approx(2 * (one.whole.total.idle_w or 0))


def test_two_containers_of_one_machine_count_once(recording: Recording) -> None:
    one, again = node(recording, "a", "1"), node(recording, "b", "1")
    assert combine([one, again]).total.energy_j == one.whole.total.energy_j


def test_a_node_without_figures_makes_the_job_unknown(recording: Recording) -> None:
    blind = replace(recording, meters=[], series=[], machine="2")
    total = combine([node_energy(recording), node_energy(blind)]).total
    assert total.energy_j is None
    assert total.reason == "nothing was measured"


def test_whole_nodes_and_parts_of_nodes_are_not_added(recording: Recording) -> None:
    whole = [replace(meter, part="node", provenance="measured-node") for meter in recording.meters]
    total = combine([node_energy(recording), node_energy(replace(recording, meters=whole, machine="2"))]).total
    assert total.energy_j is None
    assert total.reason == "whole nodes cannot be added to parts of nodes"


def test_a_job_without_any_measuring_rank() -> None:
    assert combine([None, None]).total.energy_j is None


def test_energy_of_ranks_leaves_out_what_their_launcher_does_besides(recording: Recording) -> None:
    command, ranks = Phase("command", S, 19 * S), Phase("ranks", 4 * S, 10 * S)
    recording.phases = [command, ranks, Phase("train", 5 * S, 9 * S)]
    found = energy_of_ranks(recording, command).as_dict()
    total, energy = found["whole"]["total"], ramp(30.0, 10.0)
    assert total["energy_j"] == pytest.approx(energy(10) - energy(4) + 6 * 8.0, rel=0.005)
    assert (total["window"], total["window_reason"]) == ("ranks", "from the start of the ranks to the end of the last")
    assert found["phase_power_w"] == {"train": pytest.approx((energy(9) - energy(5)) / 4 + 8.0, rel=0.005)}


def test_ranks_that_were_started_again_count_while_they_ran(recording: Recording) -> None:
    command = Phase("command", S, 19 * S)
    recording.phases = [command, Phase("ranks", 2 * S, 4 * S), Phase("ranks", 7 * S, 10 * S)]
    assert energy_of_ranks(recording, command).whole.duration_s == 5.0


def test_without_a_launcher_the_whole_command_counts_and_says_so(recording: Recording) -> None:
    command = Phase("command", S, 19 * S)
    recording.phases = [command, Phase("train", 5 * S, 9 * S)]
    found = energy_of_ranks(recording, command)
    assert found.as_dict() == node_energy(recording, whole=command).as_dict()
    assert found.as_dict()["whole"]["total"]["window"] == "whole job"
    assert combine([found]).as_dict()["total"]["window"] == "whole job"


def test_phases_that_other_processes_told(tmp_path: Path) -> None:
    path = tmp_path / "phases.jsonl"
    here = {"phase": "train", "start_ns": 1, "end_ns": 2, "machine": "m1"}
    elsewhere = {**here, "machine": "m2"}
    path.write_text("\n".join([json.dumps(here), json.dumps(elsewhere), '{"phase": "cut o']))
    assert read_phases(path, "m1") == [Phase("train", 1, 2)], "another machine has another clock"
    assert read_phases(tmp_path / "none", "m1") == []
