"""What the checks of a quiet machine read on this one, and on GPUs that nvidia-smi describes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.launch import quiet
from dpbench.launch.machine import Machine
from dpbench.records.environment import Accelerator, usable_cores

MACHINE = Machine(cores=usable_cores(), gpus=(), cuda=None, missing_backends=())
GPUS = Machine(
    cores=4,
    gpus=(Accelerator(index=0, name="H100", memory_bytes=2**30, uuid="11-aa"),),
    cuda="12.8",
    missing_backends=(),
)


def test_every_check_reads_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quiet, "IDLE_SECONDS", 0.1)
    found = quiet.look(MACHINE)
    assert [one.kind for one in found] == ["load", "clock", "gpu users"]
    assert all(one.value is not None for one in found)


def test_only_users_of_the_visible_gpus_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an nvidia-smi that knows two GPUs, of which one is visible; then without one."""
    program = tmp_path / "nvidia-smi"
    rows = ("GPU-11-aa, 12, python", "GPU-11-aa, 12, python", "GPU-22-bb, 13, other")
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    users = quiet.gpu_users(GPUS)
    assert (users.text, users.value) == ("python (pid 12)", 1)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert quiet.gpu_users(GPUS).verdict == "not readable"
