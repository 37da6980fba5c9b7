from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

import psutil
import pytest
import torch

from dpbench.codec import encode
from dpbench.records import environment
from dpbench.records.environment import (
    Accelerator,
    Environment,
    boost,
    capture,
    comparable_part,
    environment_line,
    quota_cores,
    usable_cores,
)
from tests.builders import HERE

GPU = Accelerator(index=0, name="H200", memory_bytes=2**37)
CHANGES: dict[str, object] = {
    **dict.fromkeys(("hostname", "system", "kernel", "python", "cpu", "governor"), "another"),
    **dict.fromkeys(("git_commit", "cuda", "affinity", "gpu_driver"), "another"),
    "cores": 4,
    "memory_bytes": 2**35,
    "accelerators": (GPU,),
    "quota_cores": 1.5,
    "versions": {"torch": "2.14.0"},
    "variables": {"OMP_NUM_THREADS": "1"},
    "boost": True,
}
COMPARABLE_ANYWAY = ["git_commit", "hostname", "affinity"]
PAIRS = ["versions", "variables"]


def test_this_machine_is_described_as_it_is() -> None:
    here = capture()
    assert (here.hostname, here.system) == (platform.node(), platform.system())
    assert here.python == platform.python_version()
    assert here.cpu
    assert here.cores == len(psutil.Process().cpu_affinity())
    assert here.memory_bytes == psutil.virtual_memory().total
    assert here.versions["torch"] == torch.__version__
    assert "nccl" not in here.versions
    assert (here.accelerators, here.cuda) == ((), None)
    given = capture(accelerators=[GPU], cuda="12.8", nccl="2.28.3")
    assert given.versions["nccl"] == "2.28.3"
    assert (given.accelerators, given.cuda) == ((GPU,), "12.8")
    assert capture() == here
    assert capture().environment_id == here.environment_id


def test_cores_are_those_this_process_may_use() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        here = capture()
    finally:
        os.sched_setaffinity(0, before)
    assert (here.cores, here.affinity) == (1, str(min(before)))


def test_variables_that_change_a_result_are_recorded_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [*os.environ]:
        monkeypatch.delenv(name)
    before = capture()
    recorded = (
        *("CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES", "MALLOC_ARENA_MAX", "NCCL_DEBUG"),
        *("OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
        *("TORCHINDUCTOR_MAX_AUTOTUNE", "TORCH_DISTRIBUTED_DEBUG", "TORCH_DIST_USE_NCCL2"),
        *("TORCH_GLOO_LAZY_INIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    )
    for name in (*recorded, "A_PASSWORD", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, "1")
    here = capture()
    assert here.variables == dict.fromkeys(recorded, "1")
    assert comparable_part(here.environment_id) != comparable_part(before.environment_id)


ENVIRONMENT_ID = "af4fab711cdb-06f44551"
"""If this changes, stored records no longer name their environment."""


@pytest.mark.parametrize("name", [field.name for field in fields(Environment)])
def test_every_field_changes_the_id(name: str) -> None:
    """All but three forbid a comparison, and are named with both values."""
    assert HERE.environment_id == ENVIRONMENT_ID
    other = replace(HERE, **{name: CHANGES[name]})
    assert other.environment_id != HERE.environment_id
    if name in COMPARABLE_ANYWAY:
        assert other.differences_from(HERE) == []
        assert comparable_part(other.environment_id) == comparable_part(HERE.environment_id)
    elif name not in PAIRS:
        old, new = getattr(HERE, name), CHANGES[name]
        assert other.differences_from(HERE) == [f"{name}: {encode(old)!r} -> {encode(new)!r}"]


def test_of_versions_and_variables_only_those_that_differ_are_named() -> None:
    before = replace(HERE, versions={"torch": "2.6.0", "numpy": "2.0"}, variables={})
    after = replace(
        HERE,
        versions={"torch": "2.13.0", "numpy": "2.0"},
        variables={"OMP_NUM_THREADS": "4"},
    )
    assert after.differences_from(before) == [
        "versions: torch 2.6.0 -> 2.13.0",
        "variables: OMP_NUM_THREADS not there -> 4",
    ]


V2 = {"/proc/self/cgroup": "0::/user/me"}
MINE, OUTER = "/sys/fs/cgroup/user/me/cpu.max", "/sys/fs/cgroup/user/cpu.max"


def have_files(monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str]) -> None:
    """The machine has these small files, and no others."""
    read = {path.replace("//", "/"): text for path, text in files.items()}
    monkeypatch.setattr(environment, "read_text", lambda path: read.get(path.replace("//", "/")))


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({**V2, MINE: "150000 100000"}, 1.5),
        ({**V2, MINE: "max 100000", OUTER: "5 10"}, 0.5),
        ({**V2, MINE: "max 100000"}, None),
        (V2, None),
        ({"/proc/self/cgroup": "4:memory:/x\n1:cpu,cpuacct:/job"}, None),
        ({}, None),
    ],
    ids=["own", "outer", "max", "no file", "version 1", "none"],
)
def test_the_tightest_quota_around_the_process_counts(
    files: dict[str, str], cores: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_files(monkeypatch, files)
    assert quota_cores() == cores


@pytest.mark.parametrize(
    ("quota", "cores"), [("250000 100000", 2), ("50000 100000", 1), ("max 100000", 6), ("9 1", 6)]
)
def test_a_quota_of_time_limits_the_cores_that_are_planned_with(
    quota: str, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 5, 7, 8})
    have_files(monkeypatch, {**V2, MINE: quota})
    assert usable_cores() == cores


@pytest.mark.parametrize(
    ("name", "text", "on"),
    [
        ("cpufreq/boost", "1", True),
        ("cpufreq/boost", "0", False),
        ("intel_pstate/no_turbo", "0", True),
        ("intel_pstate/no_turbo", "1", False),
        ("of another driver", "1", None),
    ],
)
def test_boost_is_told_by_either_driver(
    name: str, text: str, on: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    have_files(monkeypatch, {f"/sys/devices/system/cpu/{name}": text})
    assert boost() is on


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
    monkeypatch.chdir(tmp_path)
    assert capture().git_commit is None
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "--no-verify", "-m", "one")
    commit = git(tmp_path, "rev-parse", "HEAD")[:12]
    (tmp_path / "untracked").write_text("two")
    (tmp_path / "file").write_text("one")  # the same again, at another time
    assert capture().git_commit == commit
    (tmp_path / "file").write_text("two")
    assert capture().git_commit == f"{commit}+changes"
    # As in a hook of another repository.
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert capture().git_commit == f"{commit}+changes"


def test_the_environment_in_a_few_words() -> None:
    here = capture()
    assert environment_line({}, {"a"}) == "environment not recorded"
    assert environment_line({"a": here}, {"a", "b"}) == "2 different environments"
    old = replace(here, cpu="Z80", cores=1)
    for used in ({"e-0"}, {"e-0", "e-1"}):  # of one machine, as with two commits
        line = environment_line({"e-0": old, "e-1": old}, used)
        assert line.startswith("Z80, 1 core, ")
        assert "torch" in line
