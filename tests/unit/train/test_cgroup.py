"""Memory limits of batch systems and containers, read from trees as Linux has them."""

from pathlib import Path

import pytest

from farandole.train.rank.cgroup import granted_bytes

MIB = 1 << 20
NAMES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}


def group(folder: Path, version: int, limit: int | str, used: int, files: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(NAMES[version], (limit, used)):
        (folder / name).write_text(f"{value}\n")
    name = {1: "total_inactive_file", 2: "inactive_file"}[version]
    (folder / "memory.stat").write_text(f"anon 1\n{name} {files}\n")


def process_in(root: Path, *lines: str) -> None:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in lines))


def test_the_tightest_of_a_step_and_its_job_counts(tmp_path: Path) -> None:
    top = tmp_path / "sys/fs/cgroup"
    group(top / "slurm/job_7", 2, limit=800 * MIB, used=600 * MIB, files=100 * MIB)
    group(top / "slurm/job_7/step_0", 2, limit="max", used=500 * MIB)
    process_in(tmp_path, "0::/slurm/job_7/step_0")
    assert granted_bytes(tmp_path) == 300 * MIB


def test_version_1(tmp_path: Path) -> None:
    top = tmp_path / "sys/fs/cgroup/memory"
    group(top, 1, limit=9223372036854771712, used=MIB)
    group(top / "job", 1, limit=64 * MIB, used=60 * MIB, files=MIB)
    process_in(tmp_path, "9:cpu,cpuacct:/other", "4:memory:/job", "0::/")
    assert granted_bytes(tmp_path) == 5 * MIB


def test_a_container_that_sees_the_path_of_its_host(tmp_path: Path) -> None:
    group(tmp_path / "sys/fs/cgroup", 2, limit=2 * MIB, used=3 * MIB)
    process_in(tmp_path, "0::/system.slice/docker-1234.scope")
    assert granted_bytes(tmp_path) == 0


@pytest.mark.parametrize("lines", [(), ("0::/",), ("4:memory:/gone",)])
def test_no_limit(tmp_path: Path, lines: tuple[str, ...]) -> None:
    if lines:
        process_in(tmp_path, *lines)
    assert granted_bytes(tmp_path) is None
