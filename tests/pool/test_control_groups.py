"""Quotas of containers, in folders that look like those of Linux."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mario_envpool._core import control_groups, usable_cpus

# The group that is mounted, and the place: as on a machine, and as in a container that
# sees its own group only.
MOUNTS = {
    "v2": "31 23 0:28 {group} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
    "v1": (
        "30 23 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
        "31 23 0:28 {group} /sys/fs/cgroup rw - cgroup cgroup rw,cpuacct,cpu\n"
    ),
}
OWN = {"v2": "0::/job/step\n", "v1": "9:cpuset:/other\n3:cpuacct,cpu:/job/step\n0::/\n"}


def linux(root: Path, version: str, group: str = "/") -> Path:
    """Makes the files of /proc; returns the folder of the control groups."""
    here = root / "proc/self"
    here.mkdir(parents=True)
    (here / "mountinfo").write_text(
        "23 1 8:1 / / rw - ext4 /dev/root rw\n" + MOUNTS[version].format(group=group)
    )
    (here / "cgroup").write_text(OWN[version])
    (root / "sys/fs/cgroup/job/step").mkdir(parents=True)
    return root / "sys/fs/cgroup"


def set_quota(group: Path, version: str, quota: int, period: int = 100_000) -> None:
    if version == "v2":
        given = "max" if quota < 0 else quota
        (group / "cpu.max").write_text(f"{given} {period}\n")
    else:
        (group / "cpu.cfs_quota_us").write_text(f"{quota}\n")
        (group / "cpu.cfs_period_us").write_text(f"{period}\n")


@pytest.fixture
def many_cpus():
    if usable_cpus() < 2:
        pytest.skip("a quota below this process's one CPU is no different")


@pytest.mark.parametrize("version", ["v2", "v1"])
@pytest.mark.parametrize("place", [".", "job", "job/step"])
def test_the_tightest_quota_of_the_path_counts(tmp_path, many_cpus, version, place):
    groups = linux(tmp_path, version)
    allowed = usable_cpus(str(tmp_path))
    for folder in (".", "job", "job/step"):
        set_quota(groups / folder, version, -1)
    assert usable_cpus(str(tmp_path)) == allowed
    set_quota(groups / place, version, 50_000)
    assert usable_cpus(str(tmp_path)) == 1
    set_quota(groups / place, version, 25_000, 20_000)  # 1.25 CPUs
    assert usable_cpus(str(tmp_path)) == 2


@pytest.mark.parametrize("version", ["v2", "v1"])
@pytest.mark.parametrize(("group", "left"), [("/job", ["step"]), ("/job/step", [])])
def test_a_container_sees_its_own_part_of_the_path(tmp_path, version, group, left):
    groups = linux(tmp_path, version, group)
    expected = [groups.joinpath(*left[:n]) for n in range(len(left), -1, -1)]
    assert [Path(p) for p in control_groups("cpu", str(tmp_path))] == expected


def test_no_quota_without_control_groups_or_with_unreadable_ones(tmp_path):
    allowed = usable_cpus(str(tmp_path))
    assert control_groups("cpu", str(tmp_path)) == []
    groups = linux(tmp_path, "v2")
    for text in ("", "max\n", "many 100000\n", "50000\n", "50000 0\n", "-1 100000\n"):
        (groups / "cpu.max").write_text(text)
        assert usable_cpus(str(tmp_path)) == allowed, text


@pytest.fixture
def half_a_cpu(many_cpus):
    """A real control group with a quota: needs root, and groups that may be made."""
    for parent in control_groups("cpu") if os.geteuid() == 0 else []:
        group = Path(parent, f"mario-envpool-test-{os.getpid()}")
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            set_quota(group, "v2" if (group / "cpu.max").exists() else "v1", 50_000)
            yield group
            return
        except OSError:
            continue
        finally:
            group.rmdir()
    pytest.skip("no control group with a CPU quota can be made here")


def test_a_pool_and_the_report_count_the_quota_of_a_real_group(half_a_cpu):
    program = (
        f"open({str(half_a_cpu / 'cgroup.procs')!r}, 'w').write('0')\n"
        "import mario_envpool.__main__\n"
        "from mario_envpool._testing import _CountingEnvPool, _CountingEnvSpec\n"
        "values = dict(zip(_CountingEnvSpec._config_keys,\n"
        "                  _CountingEnvSpec._default_config_values))\n"
        "values['num_envs'] = 4\n"
        "pool = _CountingEnvPool(_CountingEnvSpec(tuple(values.values())))\n"
        "print(len(pool.status()['workers']), 'worker')\n"
        "mario_envpool.__main__.describe_gpu = lambda: ''\n"
        "mario_envpool.__main__.describe_envpool = lambda: ''\n"
        "mario_envpool.__main__.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "1 worker" in done.stdout, done.stderr
    assert f"1 of {os.cpu_count()} cores usable" in done.stdout
