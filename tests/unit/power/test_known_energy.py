"""Machines whose true energy is known: the figures are within half a percent of it, or null with the reason."""

import random
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from farandole.observe.power import Energy, PhaseEnergy, Recording, measure, power_over_time
from powertree import EPOCH_NS, Machine, Zone, ramp, steady

WITHIN = 0.005
START_S, END_S = 1.234, 18.765
"""A phase whose edges lie between samples."""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def ten_hertz(seconds: float = 20.0) -> Iterator[float]:
    """Ten times a second, each up to 20 ms late."""
    late = random.Random(5)
    for number in range(int(seconds * 10) + 1):
        yield number / 10 + late.uniform(0, 0.02)


def phase(recording: Recording, start_s: float = START_S, end_s: float = END_S) -> PhaseEnergy:
    return measure(recording, "phase", [(round(start_s * 1e9), round(end_s * 1e9))])


def truth(*joules: Callable[[float], float], start_s: float = START_S, end_s: float = END_S) -> float:
    return sum(one(end_s) - one(start_s) for one in joules)


def near(joules: float) -> object:
    return pytest.approx(joules, rel=WITHIN)


def test_constant_power(machine: Machine) -> None:
    machine.rapl("0", "package-0", steady(123.0))
    cpu = phase(machine.sampled(ten_hertz())).parts["cpu"]
    assert cpu.energy_j == near(truth(steady(123.0)))
    assert cpu.mean_w == near(123.0)
    assert cpu.provenance == "measured-component"
    assert cpu.source == "RAPL package-0"
    assert cpu.bridged_s == 0 and not cpu.remarks


def test_a_ramp(machine: Machine) -> None:
    machine.rapl("0", "package-0", ramp(20.0, 15.0))
    recording = machine.sampled(ten_hertz())
    assert phase(recording).parts["cpu"].energy_j == near(truth(ramp(20.0, 15.0)))
    assert phase(recording, 3.33, 3.87).parts["cpu"].energy_j == near(truth(ramp(20.0, 15.0), start_s=3.33, end_s=3.87))


def test_counters_that_wrap(machine: Machine) -> None:
    machine.rapl("0", "package-0", steady(150.0), range_j=500.0, first_j=499.0)
    assert phase(machine.sampled(ten_hertz())).parts["cpu"].energy_j == near(truth(steady(150.0)))


def test_a_counter_that_wraps_while_it_is_not_read(machine: Machine) -> None:
    machine.rapl("0", "package-0", steady(150.0), range_j=65_000.0, first_j=64_600.0)
    seconds = [second for second in ten_hertz() if not 2 < second < 6]
    assert phase(machine.sampled(seconds)).parts["cpu"].energy_j == near(truth(steady(150.0)))


def test_a_counter_not_read_for_so_long_that_it_may_have_come_around_twice(machine: Machine) -> None:
    machine.rapl("0", "package-0", steady(150.0), range_j=2_000.0, first_j=0.0)
    cpu = phase(machine.sampled([second for second in ten_hertz() if not 2 < second < 16])).parts["cpu"]
    assert cpu.energy_j is None
    assert "no reading for longer than a counter's round may take" in cpu.reason


def test_failed_readings_lose_no_energy(machine: Machine) -> None:
    zone = machine.rapl("0", "package-0", ramp(50.0, 4.0))
    machine.shows(
        "sys/class/powercap/intel-rapl:0/energy_uj", lambda s: "" if int(s * 10) % 7 == 3 else zone.show(s)
    )
    cpu = phase(machine.sampled(ten_hertz())).parts["cpu"]
    assert cpu.energy_j == near(truth(ramp(50.0, 4.0)))
    assert cpu.remarks == ("package-0: failed readings: not a number (29)",)


def test_a_meter_that_cannot_be_read_at_all_is_null(machine: Machine) -> None:
    machine.rapl("0", "package-0", steady(100.0))
    machine.rapl("1", "package-1", steady(100.0))
    machine.breaks("sys/class/powercap/intel-rapl:1/energy_uj")
    measured = phase(machine.sampled(ten_hertz()))
    assert measured.parts["cpu"].energy_j is None, "one package of two is not the processors' energy"
    assert "package-1" in measured.parts["cpu"].reason and "Is a directory" in measured.parts["cpu"].reason
    assert measured.total.energy_j is None


def test_a_reset_is_no_wrap(machine: Machine) -> None:
    zone = machine.rapl("0", "package-0", steady(100.0), first_j=5_000.0)

    def shown(second: float) -> str:
        return zone.show(second) if second < 7.05 else str(round((zone.joules(second) - zone.joules(7.05)) * 1e6))

    machine.shows("sys/class/powercap/intel-rapl:0/energy_uj", shown)
    cpu = phase(machine.sampled(ten_hertz())).parts["cpu"]
    assert cpu.energy_j == near(truth(steady(100.0)))
    assert 0 < cpu.bridged_s < 0.2
    assert any("the counter was reset" in remark for remark in cpu.remarks)


def test_a_faulty_reading_is_no_energy(machine: Machine) -> None:
    zone = machine.rapl("0", "package-0", steady(100.0))
    machine.shows(
        "sys/class/powercap/intel-rapl:0/energy_uj",
        lambda s: str(60_000_000_000) if 7.0 <= s < 7.1 else zone.show(s),
    )
    cpu = phase(machine.sampled(ten_hertz())).parts["cpu"]
    assert cpu.energy_j == near(truth(steady(100.0)))
    assert any("W cannot be" in remark for remark in cpu.remarks)


def test_a_counter_that_stays_at_its_ceiling_is_unknown_from_there(machine: Machine) -> None:
    zone = machine.rapl("0", "package-0", steady(100.0), range_j=3_000.0, first_j=2_000.0)
    machine.shows(
        "sys/class/powercap/intel-rapl:0/energy_uj",
        lambda s: str(min(zone.first_uj + round(zone.joules(s) * 1e6), zone.range_uj)),
    )
    cpu = phase(machine.sampled(ten_hertz())).parts["cpu"]
    assert cpu.energy_j is None
    assert "stands at its ceiling" in cpu.reason
    assert cpu.seen_j == near(truth(steady(100.0), end_s=10.0))


def test_a_gauge_at_its_ceiling_is_remarked(machine: Machine) -> None:
    machine.write("sys/class/hwmon/hwmon0/name", "amd_hsmp_hwmon\n")
    machine.write("sys/class/hwmon/hwmon0/power1_cap", "200000000\n")
    machine.shows("sys/class/hwmon/hwmon0/power1_input", lambda s: str(round(min(40 + 20 * s, 200) * 1e6)))
    measured = phase(machine.sampled(ten_hertz()))
    shown = (ramp(40.0, 20.0)(8.0) - ramp(40.0, 20.0)(START_S)) + 200 * (END_S - 8.0)
    assert measured.parts["cpu"].energy_j == near(shown)
    (remark,) = measured.parts["cpu"].remarks
    assert "at its ceiling of 200 W 6" in remark, "of 17.5 s it is there for 10.8 s"


def test_two_packages_with_their_memory(machine: Machine) -> None:
    sources = {"0": steady(100.0), "0:0": steady(10.0), "1": ramp(80.0, 3.0), "1:0": steady(12.0), "0:1": steady(70.0)}
    for zone, joules in sources.items():
        name = {"0": "package-0", "1": "package-1", "0:1": "core"}.get(zone, "dram")
        machine.rapl(zone, name, joules)
    measured = phase(machine.sampled(ten_hertz()))
    assert measured.parts["cpu"].energy_j == near(truth(sources["0"], sources["1"])), "cores are part of packages"
    assert measured.parts["memory"].energy_j == near(truth(steady(22.0)))
    assert measured.parts["memory"].source == "RAPL dram of package-0, dram of package-1"
    assert measured.total.energy_j == near(truth(sources["0"], sources["1"], steady(22.0)))
    assert measured.total.provenance == "measured-component"
    assert measured.parts["node"].energy_j is None and measured.parts["node"].provenance == "none"


def test_mirrored_dies_count_once(machine: Machine) -> None:
    for number in range(4):  # two sockets of two dies, whose counters are read a moment apart
        socket, die = divmod(number, 2)
        joules = steady(160.0 - 30.0 * socket)
        machine.rapl(
            str(number), f"package-{socket}-die-{die}", joules, first_j=9_000.0 + 50.0 * socket + 0.3 * die, range_j=10_000.0
        )
    cpu = phase(machine.sampled(ten_hertz())).parts["cpu"]
    assert cpu.energy_j == near(truth(steady(290.0)))
    assert "package-0-die-1 shows the counter of package-0-die-0: counted once" in cpu.remarks
    assert cpu.source == "RAPL package-0-die-0, package-1-die-0"


def test_dies_with_counters_of_their_own_are_added(machine: Machine) -> None:
    machine.rapl("0", "package-0-die-0", steady(90.0), first_j=500.0)
    machine.rapl("1", "package-0-die-1", steady(91.0), first_j=500.5)
    recording = machine.sampled(ten_hertz())
    assert phase(recording).parts["cpu"].energy_j == near(truth(steady(181.0)))
    recording.series[0].monotonic_ns[5] -= 1_000_000  # read a moment earlier: of a short phase one die has a sample more
    start_s = recording.series[1].monotonic_ns[5] / 1e9 + 2.9995
    assert phase(recording, start_s, start_s + 0.5).parts["cpu"].energy_j == near(181.0 * 0.5)


def test_the_platform_is_the_node_and_is_not_added_to_its_parts(machine: Machine) -> None:
    machine.rapl("0", "package-0", steady(60.0))
    machine.rapl("1", "psys", steady(100.0))
    measured = phase(machine.sampled(ten_hertz()))
    assert measured.parts["node"].provenance == "measured-node"
    assert measured.total == measured.parts["node"]
    assert measured.total.energy_j == near(truth(steady(100.0)))


def test_a_platform_that_covers_less_than_its_parts_is_remarked(machine: Machine) -> None:
    machine.rapl("0", "package-0", steady(200.0))
    machine.rapl("1", "psys", steady(50.0))
    total = phase(machine.sampled(ten_hertz())).total
    assert total.energy_j == near(truth(steady(50.0))) and total.provenance == "measured-node"
    assert total.remarks == ("the parts took 3,506 J, more than the node: its meter does not cover all of them",)


@pytest.mark.parametrize("seconds", [20.0, 0.6])
def test_a_platform_that_stands_still_is_set_aside(machine: Machine, seconds: float) -> None:
    machine.rapl("0", "package-0", steady(200.0))
    machine.rapl("0:0", "dram", steady(20.0))
    machine.rapl("1", "psys", steady(0.0), first_j=0.0)
    recording = machine.sampled(ten_hertz(seconds))
    measured = phase(recording, 0.1, seconds - 0.1)
    total = measured.total
    assert total.energy_j == near(220.0 * (seconds - 0.2)) and total.provenance == "measured-component"
    assert total.source == "cpu (RAPL package-0) + memory (RAPL dram of package-0)"
    said = "psys never moves, while other meters do: it is left out"
    assert total.remarks == (said,) and measured.parts["node"].reason == said
    assert measured.parts["node"].energy_j is None and measured.parts["node"].provenance == "none"
    drawn = dict(power_over_time(recording, "node", 0, 10**8 * 4, 10**8))
    assert set(drawn.values()) == {None}


def test_of_two_platforms_one_of_which_stands_still_the_other_is_the_node(machine: Machine) -> None:
    machine.rapl("0", "psys", steady(300.0))
    machine.rapl("1", "psys", steady(0.0), first_j=0.0)
    measured = phase(machine.sampled(ten_hertz()))
    assert measured.total.energy_j == near(truth(steady(300.0)))
    assert measured.total.provenance == "measured-node" and len(measured.total.remarks) == 1


@pytest.mark.parametrize("name", ["package-0", "psys"])
def test_a_counter_that_never_moves_is_a_gap_however_short_the_recording(machine: Machine, name: str) -> None:
    machine.rapl("0", name, steady(0.0))
    total = phase(machine.sampled(ten_hertz(0.6)), 0.1, 0.5).total
    assert total.energy_j is None
    assert "the counter does not move" in total.reason


def test_a_model_never_exceeds_what_the_processors_may_draw(machine: Machine) -> None:
    """The kernel counts in ticks of 10 ms: a few milliseconds may show more of them than there were."""
    machine.proc(cores=2, busy=1.4)
    recording = machine.sampled(ten_hertz(1.0))
    cpu = phase(recording, 0.5, 0.51).parts["cpu"]
    assert cpu.energy_j == pytest.approx(20.0 * 0.01) and not cpu.remarks
    assert {round(watts or 0, 6) for _, watts in power_over_time(recording, "cpu", 10**8, 10**9, 10**8)} == {20.0}


def test_a_board_that_catches_up_loses_nothing(machine: Machine) -> None:
    zone = machine.rapl("0", "package-0", steady(100.0))
    machine.shows(
        "sys/class/powercap/intel-rapl:0/energy_uj", lambda s: zone.show(5.0 if 5.0 < s < 9.0 else s)
    )
    cpu = phase(machine.sampled(ten_hertz())).parts["cpu"]
    assert cpu.energy_j == near(truth(steady(100.0)))
    assert cpu.bridged_s == 0


def cray(machine: Machine, file: str, joules: Callable[[float], float]) -> None:
    """Renewed ten times a second, and told half a second later: only the time stamp says when it was true."""

    def shown(second: float) -> str:
        taken_s = max(int((second - 0.5) * 10) / 10, 0.0)
        return f"{round(1_000_000 + joules(taken_s))} J {(EPOCH_NS + round(taken_s * 1e9)) // 1000} us\n"

    machine.shows(f"sys/cray/pm_counters/{file}", shown)


def test_cray(machine: Machine) -> None:
    cray(machine, "energy", ramp(400.0, 30.0))
    cray(machine, "cpu_energy", steady(105.0))
    cray(machine, "memory_energy", steady(60.0))
    for number in range(4):
        cray(machine, f"accel{number}_energy", ramp(50.0, 7.0))
    cray(machine, "accel_energy", ramp(200.0, 28.0))
    machine.write("sys/cray/pm_counters/power_cap", f"0 W {EPOCH_NS // 1000} us\n")
    machine.rapl("0", "package-0", steady(1.0))  # another view of the same processors
    measured = phase(machine.sampled(ten_hertz()))
    assert measured.total.energy_j == near(truth(ramp(400.0, 30.0)))
    assert measured.total.provenance == "measured-node"
    assert measured.parts["cpu"].energy_j == near(truth(steady(105.0)))
    assert measured.parts["memory"].energy_j == near(truth(steady(60.0)))
    assert measured.parts["gpu"].energy_j == near(truth(ramp(200.0, 28.0)))
    assert measured.parts["gpu"].source == "Cray pm_counters accel0, accel1, accel2, accel3"


def test_amd_energy(machine: Machine) -> None:
    machine.write("sys/class/hwmon/hwmon3/name", "amd_energy\n")
    for number, label in enumerate(["Ecore000", "Ecore001", "Esocket0", "Esocket1"], 1):
        machine.write(f"sys/class/hwmon/hwmon3/energy{number}_label", label + "\n")
        machine.shows(f"sys/class/hwmon/hwmon3/energy{number}_input", lambda s, n=number: str(round(100e6 * n * s)))
    cpu = phase(machine.sampled(ten_hertz())).parts["cpu"]
    assert cpu.energy_j == near(truth(steady(700.0)))
    assert cpu.source == "AMD energy socket 0, socket 1"


def test_a_gauge_says_nothing_of_the_time_it_was_not_read(machine: Machine) -> None:
    machine.write("sys/class/hwmon/hwmon0/name", "amd_hsmp_hwmon\n")
    machine.shows("sys/class/hwmon/hwmon0/power1_input", lambda s: str(round((90 + 5 * s) * 1e6)))
    seconds = list(ten_hertz())
    assert phase(machine.sampled(seconds)).parts["cpu"].energy_j == near(truth(ramp(90.0, 5.0)))
    short = phase(machine.sampled([s for s in seconds if not 8 < s < 8.6])).parts["cpu"]
    assert short.energy_j == near(truth(ramp(90.0, 5.0)))
    long = phase(machine.sampled([s for s in seconds if not 8 < s < 12])).parts["cpu"]
    assert long.energy_j is None and "no reading" in long.reason


def test_a_phase_longer_than_the_recording_is_unknown(machine: Machine) -> None:
    machine.rapl("0", "package-0", steady(100.0))
    recording = machine.sampled(ten_hertz(5.0))
    assert phase(recording, 1.0, 9.0).parts["cpu"].energy_j is None
    assert phase(recording, 7.0, 9.0).parts["cpu"].energy_j is None


def test_power_over_time(machine: Machine) -> None:
    zone = machine.rapl("0", "package-0", ramp(0.0, 10.0))
    machine.rapl("1", "package-1", steady(50.0))
    machine.shows(
        "sys/class/powercap/intel-rapl:0/energy_uj", lambda s: zone.show(s) if s < 15.0 else zone.show(15.0)
    )
    drawn = dict(power_over_time(machine.sampled(ten_hertz()), "cpu", 0, 20 * 10**9, 10**9))
    assert drawn[4 * 10**9] == near(95.0)
    assert len(drawn) == 20
    assert drawn[17 * 10**9] is None, "one of the two stands still"


@pytest.mark.parametrize("seed", range(20))
def test_any_power_any_wrap_any_failed_reading(machine: Machine, seed: int) -> None:
    dice = random.Random(seed)
    watts = [dice.choice([5.0, 60.0, 250.0, 400.0]) * dice.uniform(0.9, 1.1) for _ in range(41)]
    sums = [0.0, *accumulate(w * 0.5 for w in watts)]

    def joules(second: float) -> float:
        at = min(int(second * 2), 40)
        return sums[at] + watts[at] * (second - at / 2)

    zone = Zone(Path(), joules, range_j=dice.uniform(450, 70_000), first_j=dice.uniform(0, 70_000))
    machine.rapl("0", "package-0", joules, range_j=zone.range_uj / 1e6, first_j=zone.first_uj / 1e6)
    failing = {round(second, 1) for second in (dice.uniform(0, 20) for _ in range(30))}
    machine.shows(
        "sys/class/powercap/intel-rapl:0/energy_uj", lambda s: "?" if round(s, 1) in failing else zone.show(s)
    )
    start_s = round(dice.uniform(0.5, 5), 1)
    end_s = round(dice.uniform(14, 19), 1)
    seconds = sorted({number / 10 for number in range(200)} | {start_s, end_s})
    failing -= {start_s, end_s}  # phases read the meters when they begin and end
    cpu: Energy = phase(machine.sampled(seconds), start_s, end_s).parts["cpu"]
    assert cpu.energy_j == near(truth(joules, start_s=start_s, end_s=end_s))
