"""The cores that a process may use: its affinity, and the quotas of both versions of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.runtime import cores, openmp
from weft.runtime.cores import available_cores, cpu_quota


def group(folder: Path, line: str, **files: str) -> Path:
    """A file that names the groups of a process, and the files of a mount."""
    for name, text in files.items():
        path = folder / "mount" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "cgroup").write_text(line)
    return folder


def quota(folder: Path) -> float | None:
    return cpu_quota(folder / "cgroup", folder / "mount")


def test_one_hierarchy_has_the_least_quota_on_the_way_up(tmp_path: Path) -> None:
    files = {"cpu_dot_max": "max 100000\n", "a__cpu_dot_max": "150000 100000\n", "a__b__cpu_dot_max": "400000 100000\n"}
    assert quota(group(tmp_path, "0::/a/b\n", **files)) == 1.5


def test_a_container_sees_its_own_group_at_the_top(tmp_path: Path) -> None:
    assert quota(group(tmp_path, "0::/docker/0123\n", cpu_dot_max="200000 100000\n")) == 2.0


def test_the_older_version_has_a_hierarchy_of_processors(tmp_path: Path) -> None:
    files = {"cpu,cpuacct__job__cpu_dot_cfs_quota_us": "50000\n", "cpu,cpuacct__job__cpu_dot_cfs_period_us": "100000\n"}
    assert quota(group(tmp_path, "4:cpu,cpuacct:/job\n2:memory:/job\n", **files)) == 0.5


@pytest.mark.parametrize("text", ["max 100000\n", "-1 100000\n", "nonsense\n", ""])
def test_no_quota_is_no_limit(tmp_path: Path, text: str) -> None:
    assert quota(group(tmp_path, "0::/\n", cpu_dot_max=text)) is None


def test_systems_without_control_groups_have_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize(("share", "expected"), [(None, 6), (0.2, 1), (1.5, 2), (3.0, 3), (64.0, 6)])
def test_cores_are_those_of_the_affinity_within_the_quota(
    monkeypatch: pytest.MonkeyPatch, share: float | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)), raising=False)
    monkeypatch.setattr(cores, "cpu_quota", lambda: share)
    assert available_cores() == expected


def test_threads_follow_the_cores_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "available_cores", lambda: 5)
    monkeypatch.setattr(openmp, "pool_threads", lambda: 7)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert openmp.default_threads() == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert openmp.default_threads() == 7
