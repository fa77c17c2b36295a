"""Which sensors are found and used, what is said of those that cannot be, and that a model never looks like one."""

import errno
import json
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from farandole.errors import SettingsError
from farandole.observe.power import PhaseEnergy, Sampler, as_text, find_sensors, measure, node_energy
from farandole.observe.power.recording import Phase
from powertree import Machine, steady

SECONDS = [number / 10 for number in range(101)]
WINDOW = (1_000_000_000, 9_000_000_000)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.proc(cores=4, gigabytes=16.0, busy=0.5, used=0.25)
    return made


@pytest.fixture
def locked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Counters that only root may open; the tests may be run by root."""
    machine.rapl("0", "package-0", steady(77.0), limit_w=150.0)
    opened = os.open

    def refuse(path: Any, *options: Any) -> int:
        if Path(path).name == "energy_uj":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *options)

    monkeypatch.setattr(os, "open", refuse)
    return machine


def measured(machine: Machine) -> PhaseEnergy:
    return measure(machine.sampled(SECONDS), "phase", [WINDOW])


def rows_of(text: str) -> list[str]:
    """The table's, below its headings."""
    return text.split("\n\n")[1].splitlines()[1:]


def test_the_model_is_labelled_wherever_it_shows(machine: Machine) -> None:
    recording = machine.sampled(SECONDS)
    recording.phases = [Phase("train", *WINDOW)]
    recording.idle = (0, 1_000_000_000)
    node = node_energy(recording)
    cpu, memory = node.whole.parts["cpu"], node.whole.parts["memory"]
    assert cpu.energy_j == pytest.approx(8 * 4 * 10.0 * 0.5, rel=0.005)
    assert memory.energy_j == pytest.approx(8 * 16 * 0.4 * 0.25, rel=0.005)
    figures = [node.whole.total, cpu, memory, node.phases[0].total, node.idle.total if node.idle else cpu]
    assert {figure.provenance for figure in figures} == {"modelled"}
    assert all("modelled" in str(figure) and str(figure).startswith("~") for figure in figures)

    text = as_text(node)
    assert "MODELLED, not measured" in text.splitlines()[0]
    rows = rows_of(text)
    assert len(rows) == 6
    assert all("modelled" in row and row.count("~") == 3 for row in rows), text
    assert "measured-" not in text

    told = json.loads(json.dumps(node.as_dict()))
    for found in (told["whole"]["total"], told["whole"]["parts"]["cpu"], told["phases"][0]["total"], told["idle"]["total"]):
        assert found["provenance"] == "modelled" and found["modelled"] is True
        assert "a guess: 10 W a core" in found["source"]


def test_locked_counters_say_what_to_type_and_power_is_modelled_from_their_limit(locked: Machine) -> None:
    recording = locked.sampled(SECONDS)
    (refusal,) = recording.refusals
    assert refusal.sensor == "RAPL"
    assert "only root" in refusal.reason
    assert "sudo chmod a+r /sys/class/powercap" in refusal.advice
    cpu = measure(recording, "phase", [WINDOW]).parts["cpu"]
    assert cpu.provenance == "modelled"
    assert cpu.energy_j == pytest.approx(8 * 150.0 * 0.5, rel=0.005)
    assert "150 W (RAPL's limit)" in cpu.source
    assert "sudo chmod" in as_text(node_energy(recording), recording.refusals)


def test_what_the_model_assumes_can_be_told(machine: Machine) -> None:
    found = find_sensors(machine.root, {"FARANDOLE_CPU_TDP_W": "215", "FARANDOLE_MEMORY_W": "12"})
    found.close()
    with pytest.raises(SettingsError, match="FARANDOLE_CPU_TDP_W='lots': expected watts"):
        find_sensors(machine.root, {"FARANDOLE_CPU_TDP_W": "lots"})
    with pytest.raises(SettingsError, match="FARANDOLE_MEMORY_W=-1: expected watts above 0"):
        find_sensors(machine.root, {"FARANDOLE_MEMORY_W": "-1"})


def test_told_watts_are_used(machine: Machine) -> None:
    found = find_sensors(machine.root, {"FARANDOLE_CPU_TDP_W": "215"})
    sampler = Sampler(found, clock=machine.clock)
    for second in SECONDS:
        machine.at(second)
        sampler.sample()
    sampler.close()
    cpu = measure(sampler.recording(), "phase", [WINDOW]).parts["cpu"]
    assert cpu.energy_j == pytest.approx(8 * 215.0 * 0.5, rel=0.005)
    assert "215 W (FARANDOLE_CPU_TDP_W)" in cpu.source


def test_measured_processors_are_not_modelled_as_well(machine: Machine) -> None:
    machine.rapl("0", "package-0", steady(90.0))
    found = measured(machine)
    assert found.parts["cpu"].provenance == "measured-component"
    assert found.parts["memory"].provenance == "none", "no dram domain here: unknown, not modelled"
    assert found.parts["memory"].energy_j is None
    assert found.total.source == "cpu (RAPL package-0)"


def test_counters_through_another_register_are_not_counted_twice(machine: Machine) -> None:
    machine.rapl("0", "package-0", steady(90.0))
    mmio = machine.root / "sys/class/powercap/intel-rapl-mmio:0"
    mmio.mkdir()
    for name in ("name", "energy_uj"):
        (mmio / name).write_text((machine.root / "sys/class/powercap/intel-rapl:0" / name).read_text())
    assert measured(machine).parts["cpu"].energy_j == pytest.approx(8 * 90.0, rel=0.005)


def test_what_is_locked_and_not_needed_is_not_spoken_of(locked: Machine) -> None:
    for file in ("energy", "cpu_energy"):
        locked.shows(f"sys/cray/pm_counters/{file}", lambda s: f"{round(100 * s)} J")
    recording = locked.sampled(SECONDS)
    assert recording.refusals == []
    assert measure(recording, "phase", [WINDOW]).total.provenance == "measured-node"


def test_a_node_that_took_less_than_its_gpus_is_remarked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia(monkeypatch, machine)
    machine.rapl("0", "psys", steady(120.0))
    total = measured(machine).total
    assert total.energy_j == pytest.approx(8 * 120.0, rel=0.005)
    assert any("its meter does not cover all of them" in remark for remark in total.remarks)


def test_a_machine_that_shows_nothing(tmp_path: Path) -> None:
    found = measured(Machine(tmp_path))
    assert found.total.energy_j is None
    assert found.total.reason == "nothing was measured"


def test_an_interval_too_long_for_the_counters_is_refused(machine: Machine) -> None:
    machine.rapl("0", "package-0", steady(90.0), range_j=4_000.0)
    found = find_sensors(machine.root, {})
    try:
        with pytest.raises(SettingsError, match=r"a sample every 1.5 s: expected 0.001 to 1 s here, e.g. 0.1"):
            Sampler(found, interval_s=1.5)
    finally:
        found.close()


# GPUs: their libraries are stood in for


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


class GpuError(Exception):
    """What a vendor's library raises."""


def nvidia(monkeypatch: pytest.MonkeyPatch, machine: Machine, **changes: Any) -> list[str]:
    """Two GPUs of 300 and 200 W; `shut` tells whether the library was left."""
    shut: list[str] = []

    def energy_mj(gpu: int) -> int:
        return round((300 - 100 * gpu) * machine.second * 1e3)

    members: dict[str, Any] = {
        "NVMLError": GpuError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: shut.append("shut"),
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 500_000,
        "nvmlDeviceGetTotalEnergyConsumption": energy_mj,
        "nvmlDeviceGetPowerUsage": lambda gpu: (300 - 100 * gpu) * 1000,
    }
    stand_in(monkeypatch, "pynvml", **members | changes)
    return shut


def fails(*_: Any) -> Any:
    raise GpuError("not supported")


def test_nvidia_gpus_beside_a_modelled_processor(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    shut = nvidia(monkeypatch, machine)
    found = measured(machine)
    assert shut == ["shut"]
    assert found.parts["gpu"].energy_j == pytest.approx(8 * 500.0, rel=0.005)
    assert found.parts["gpu"].provenance == "measured-component"
    assert found.parts["cpu"].provenance == "modelled"
    assert found.total.provenance == "modelled", "a sum with a modelled part is modelled"


def test_older_nvidia_gpus_have_their_power_sampled(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia(monkeypatch, machine, nvmlDeviceGetTotalEnergyConsumption=fails)
    assert measured(machine).parts["gpu"].energy_j == pytest.approx(8 * 500.0, rel=0.005)


def test_a_gpu_that_fails_is_null_with_its_reason(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia(
        monkeypatch, machine, nvmlDeviceGetTotalEnergyConsumption=fails,
        nvmlDeviceGetPowerUsage=lambda gpu: 1000 if gpu == 0 else fails(),
    )  # fmt: skip
    gpu = measured(machine).parts["gpu"]
    assert gpu.energy_j is None
    assert "gpu 1" in gpu.reason and "not supported" in gpu.reason


def test_the_package_without_a_driver_is_no_gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia(monkeypatch, machine, nvmlInit=fails)
    assert measured(machine).parts["gpu"].provenance == "none"


def test_gpus_without_the_package_say_what_to_type(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (machine.root / "proc/driver/nvidia/gpus").mkdir(parents=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = find_sensors(machine.root, {})
    found.close()
    assert [(refusal.sensor, refusal.advice) for refusal in found.refusals] == [("NVML", "pip install 'farandole[gpu]'")]


@pytest.mark.parametrize("key", ["energy_accumulator", "power"])
def test_amd_gpus(machine: Machine, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    stand_in(
        monkeypatch, "amdsmi", AmdSmiException=GpuError, amdsmi_init=lambda: None, amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: ["a"],
        amdsmi_get_energy_count=lambda handle: {
            key: round(machine.second * 400.0 / 15.259e-6), "counter_resolution": 15.259, "timestamp": 1
        },
    )  # fmt: skip
    gpu = measured(machine).parts["gpu"]
    assert gpu.energy_j == pytest.approx(8 * 400.0, rel=0.005)
    assert gpu.source == "AMD SMI gpu 0"


def test_amd_gpus_without_a_counter(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(
        monkeypatch, "amdsmi", AmdSmiException=GpuError, amdsmi_init=lambda: None, amdsmi_shut_down=lambda: None,
        amdsmi_get_processor_handles=lambda: ["a"], amdsmi_get_energy_count=fails,
        amdsmi_get_power_info=lambda handle: {"current_socket_power": "N/A", "average_socket_power": 310},
    )  # fmt: skip
    assert measured(machine).parts["gpu"].energy_j == pytest.approx(8 * 310.0, rel=0.005)


def test_a_counter_that_never_moves_is_no_zero(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia(monkeypatch, machine, nvmlDeviceGetTotalEnergyConsumption=lambda gpu: 12_345)
    gpu = measured(machine).parts["gpu"]
    assert gpu.energy_j is None
    assert "the counter does not move" in gpu.reason
