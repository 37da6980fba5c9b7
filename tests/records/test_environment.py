from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import psutil
import pytest
import torch

from dpbench.records import environment
from dpbench.records.environment import (
    SYNTHETIC,
    SYNTHETIC_NOTE,
    Accelerator,
    Environment,
    boost,
    capture,
    comparable,
    environment_line,
    quota_cores,
    usable_cores,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs an affinity mask")
HERE = Environment(
    hostname="h",
    system="Linux",
    kernel="6.1",
    python="3.11.7",
    cpu="A",
    cores=2,
    memory_bytes=2**34,
    versions=(("torch", "2.13.0"),),
)
GPU = Accelerator(index=0, name="H200", memory_bytes=2**37)
CHANGES: dict[str, object] = {
    "hostname": "i",
    "system": "Darwin",
    "kernel": "6.2",
    "python": "3.12.0",
    "cpu": "B",
    "cores": 4,
    "memory_bytes": 2**35,
    "accelerators": (GPU,),
    "governor": "powersave",
    "versions": (("torch", "2.14.0"),),
    "variables": (("OMP_NUM_THREADS", "1"),),
    "git_commit": "0123456789ab",
    "cuda": "12.8",
    "launcher": "synthetic",
    "affinity": "0-1",
    "quota_cores": 1.5,
    "boost": True,
    "gpu_driver": "550.54.15",
}
COMPARABLE_ANYWAY = ["git_commit", "hostname", "affinity"]
PAIRS = ["versions", "variables"]


@linux
def test_this_machine_is_described_as_it_is() -> None:
    here = capture()
    assert (here.hostname, here.system) == (platform.node(), platform.system())
    assert here.python == platform.python_version()
    assert here.cpu
    assert here.cores == len(psutil.Process().cpu_affinity())
    assert here.memory_bytes == psutil.virtual_memory().total
    assert dict(here.versions)["torch"] == torch.__version__
    assert "nccl" not in dict(here.versions)
    assert dict(capture(nccl="2.28.3").versions)["nccl"] == "2.28.3"
    assert (here.accelerators, here.cuda, here.launcher) == ((), None, "elastic")


@linux
def test_cores_are_those_this_process_may_use() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert usable_cores() == capture().cores == 1
    finally:
        os.sched_setaffinity(0, before)


def test_variables_that_change_a_result_are_recorded_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without = set(dict(capture().variables))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("A_PASSWORD", "secret")
    variables = dict(capture().variables)
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["NCCL_DEBUG"] == "INFO"
    assert set(variables) - without <= {"OMP_NUM_THREADS", "NCCL_DEBUG", "MALLOC_ARENA_MAX"}
    assert list(variables) == sorted(variables)


def test_a_package_that_is_not_installed_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PACKAGES", ("torch", "no-such-package"))
    assert dict(capture().versions)["no-such-package"] == "absent"


def test_what_is_passed_in_is_kept() -> None:
    here = capture(accelerators=[GPU], cuda="12.8", launcher="synthetic")
    assert (here.accelerators, here.cuda, here.launcher) == ((GPU,), "12.8", "synthetic")


def test_equal_environments_have_equal_ids_and_captures_are_equal() -> None:
    assert capture() == capture()
    assert capture().environment_id == capture().environment_id
    assert replace(HERE).environment_id == HERE.environment_id == ENVIRONMENT_ID


ENVIRONMENT_ID = "1c558f46dff3-7398"
"""If this changes, stored records no longer name their environment."""


def test_every_field_is_tried_below() -> None:
    assert set(CHANGES) == {field.name for field in fields(Environment)}


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_changes_the_id(name: str) -> None:
    assert replace(HERE, **{name: CHANGES[name]}).environment_id != HERE.environment_id


@pytest.mark.parametrize("name", sorted(set(CHANGES) - {*COMPARABLE_ANYWAY, *PAIRS}))
def test_a_field_that_forbids_a_comparison_is_named_with_both_values(name: str) -> None:
    other = replace(HERE, **{name: CHANGES[name]})
    old, new = getattr(HERE, name), CHANGES[name]
    assert other.differences_from(HERE) == [f"{name}: {old!r} -> {new!r}"]
    assert HERE.differences_from(other) == [f"{name}: {new!r} -> {old!r}"]


def test_of_versions_and_variables_only_those_that_differ_are_named() -> None:
    before = replace(HERE, versions=(("torch", "2.6.0"), ("numpy", "2.0")), variables=())
    after = replace(
        HERE,
        versions=(("torch", "2.13.0"), ("numpy", "2.0")),
        variables=(("OMP_NUM_THREADS", "4"),),
    )
    assert after.differences_from(before) == [
        "versions: torch 2.6.0 -> 2.13.0",
        "variables: OMP_NUM_THREADS not there -> 4",
    ]


@pytest.mark.parametrize("name", COMPARABLE_ANYWAY)
def test_commit_host_name_and_the_numbers_of_cores_forbid_no_comparison(name: str) -> None:
    other = replace(HERE, **{name: CHANGES[name]})
    assert other.differences_from(HERE) == []
    assert comparable(other.environment_id) == comparable(HERE.environment_id)


GROUP = "/sys/fs/cgroup/"
V2 = {"/proc/self/cgroup": "0::/user/me", f"{GROUP}cgroup.controllers": "cpu memory"}
V1 = {"/proc/self/cgroup": "4:memory:/x\n1:cpu,cpuacct:/job"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({**V2, f"{GROUP}/user/me/cpu.max": "150000 100000"}, 1.5),
        ({**V2, f"{GROUP}/user/me/cpu.max": "max 100000", f"{GROUP}/user/cpu.max": "5 10"}, 0.5),
        ({**V2, f"{GROUP}/user/me/cpu.max": "max 100000"}, math.inf),
        (V2, math.inf),
        (
            {
                **V1,
                f"{GROUP}cpu/job/cpu.cfs_quota_us": "200000",
                f"{GROUP}cpu/job/cpu.cfs_period_us": "100000",
            },
            2.0,
        ),
        (
            {
                **V1,
                f"{GROUP}cpu/cpu.cfs_quota_us": "-1",
                f"{GROUP}cpu/cpu.cfs_period_us": "100000",
            },
            math.inf,
        ),
        (V1, None),
        ({}, None),
    ],
    ids=["v2", "v2 outer", "v2 max", "v2 no file", "v1", "v1 no limit", "v1 unreadable", "none"],
)
def test_the_tightest_quota_around_the_process_counts(
    files: dict[str, str], cores: float | None
) -> None:
    tidy = {os.path.normpath(path): text for path, text in files.items()}
    assert quota_cores(lambda path: tidy.get(os.path.normpath(path))) == cores


@pytest.mark.parametrize(
    ("name", "text", "on"),
    [
        ("cpufreq/boost", "1", True),
        ("cpufreq/boost", "0", False),
        ("intel_pstate/no_turbo", "0", True),
        ("intel_pstate/no_turbo", "1", False),
    ],
)
def test_boost_is_told_by_either_driver(name: str, text: str, on: bool) -> None:
    assert boost({f"/sys/devices/system/cpu/{name}": text}.get) is on
    assert boost({}.get) is None


@linux
def test_the_usable_cores_are_named_in_ranges() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert capture().affinity == str(min(before))
    finally:
        os.sched_setaffinity(0, before)
    assert environment._ranges((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    finished = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return finished.stdout.strip()


def test_the_commit_says_whether_there_are_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert capture().git_commit is None
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "--no-verify", "-m", "one")
    commit = git(tmp_path, "rev-parse", "HEAD")[:12]
    assert capture().git_commit == commit
    (tmp_path / "untracked").write_text("two")
    assert capture().git_commit == commit
    (tmp_path / "file").write_text("one")  # the same again, at another time
    assert capture().git_commit == commit
    (tmp_path / "file").write_text("two")
    assert capture().git_commit == f"{commit}+changes"
    git(tmp_path, "add", "file")
    assert capture().git_commit == f"{commit}+changes"


def test_the_environment_in_a_few_words() -> None:
    here = capture()
    line = environment_line({"a": here}, {"a"})
    assert here.cpu in line
    assert "torch" in line
    assert environment_line({}, set()) == "environment not recorded"
    assert environment_line({"a": here}, {"a", "b"}) == "environments a, b"


def test_a_machine_may_have_one_core() -> None:
    machine = replace(capture(), cpu="Z80", cores=1)
    assert "Z80, 1 core, " in environment_line({"e0": machine}, {"e0"})


def test_made_up_numbers_say_so_and_name_no_machine() -> None:
    made_up = replace(capture(), launcher=SYNTHETIC)
    assert environment_line({"m": made_up}, {"m"}) == SYNTHETIC_NOTE
    assert environment_line({"m": made_up, "o": made_up}, {"m", "o"}) == SYNTHETIC_NOTE
    both = {"m": made_up, "e": capture()}
    assert environment_line(both, {"m", "e"}) == "environments e, m (synthetic)"
