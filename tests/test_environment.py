from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import psutil
import pytest
import torch

from dpbench import environment
from dpbench.environment import Accelerator, Environment, capture, usable_cores

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
}


@linux
def test_this_machine_is_described_as_it_is() -> None:
    here = capture()
    assert (here.hostname, here.system) == (platform.node(), platform.system())
    assert here.python == platform.python_version()
    assert here.cpu
    assert here.cores == len(psutil.Process().cpu_affinity())
    assert here.memory_bytes == psutil.virtual_memory().total
    assert dict(here.versions)["torch"] == torch.__version__
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


@pytest.mark.parametrize("name", sorted(set(CHANGES) - {"git_commit", "hostname"}))
def test_a_field_that_forbids_a_comparison_is_named_with_both_values(name: str) -> None:
    other = replace(HERE, **{name: CHANGES[name]})
    old, new = getattr(HERE, name), CHANGES[name]
    assert other.differences_from(HERE) == [f"{name}: {old!r} -> {new!r}"]
    assert HERE.differences_from(other) == [f"{name}: {new!r} -> {old!r}"]


@pytest.mark.parametrize("name", ["git_commit", "hostname"])
def test_neither_the_commit_nor_the_host_name_forbids_a_comparison(name: str) -> None:
    assert replace(HERE, **{name: CHANGES[name]}).differences_from(HERE) == []


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
    (tmp_path / "file").write_text("two")
    assert capture().git_commit == f"{commit}+changes"
