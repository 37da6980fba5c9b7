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


@pytest.mark.slow
def test_every_check_reads_this_machine_or_says_that_it_cannot() -> None:
    found = {one.kind: one for one in quiet.look(MACHINE)}
    assert list(found) == [check.kind for check in quiet.CHECKS]
    for kind in ("load", "clock", "harness", "threads", "swap"):
        assert found[kind].value is not None, found[kind]
    harness = found["harness"].value
    assert harness is not None
    assert harness < 100  # a launcher that polls would take a core
    assert all((one.advice is not None) == (one.verdict == "warning") for one in found.values())


def answering(folder: Path, monkeypatch: pytest.MonkeyPatch, share: str) -> None:
    """An nvidia-smi that knows two GPUs, of which one is visible."""
    program = folder / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        "case $1 in\n"
        f"*utilization*) printf 'GPU-11-aa, {share}\\nGPU-22-bb, 99\\n';;\n"
        "*) printf 'GPU-11-aa, 12, python\\nGPU-11-aa, 12, python\\nGPU-22-bb, 13, other\\n';;\n"
        "esac\n"
    )
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")


def test_only_users_of_the_visible_gpus_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(tmp_path, monkeypatch, "3")
    users, load = quiet.gpu_users(GPUS), quiet.gpu_load(GPUS)
    assert users is not None
    assert load is not None
    assert (users.text, load.value) == ("python (pid 12)", 3.0)


def test_a_gpu_that_does_not_answer_is_not_called_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(tmp_path, monkeypatch, "[N/A]")
    assert quiet.gpu_load(GPUS) is None
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert quiet.gpu_load(GPUS) is None
    assert quiet.gpu_users(GPUS) is None


@pytest.mark.parametrize(
    ("asked", "value"), [(None, 0.0), ("2", 2.0), ("1,4", 1.0), ("many", None)]
)
def test_threads_of_other_libraries_are_those_of_all_replicas(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, value: float | None
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    found = quiet.threads(MACHINE)
    assert (None if found is None else found.value) == value
