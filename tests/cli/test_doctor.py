"""`dpbench doctor`: the machine in words, and whether each backend works on it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from dpbench.cli.app import run
from dpbench.launch.collective_runner import SelfTest
from dpbench.launch.machine import Machine
from dpbench.records.environment import usable_cores
from dpbench.run import setup
from dpbench.specs.traits import BACKENDS

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPU")


def answers(monkeypatch: pytest.MonkeyPatch, **by_backend: SelfTest) -> None:
    def answer(backend: str, machine: Machine) -> SelfTest:
        return by_backend.get(backend, replace(NCCL_MISSING, backend=backend))

    monkeypatch.setattr(setup, "self_test", answer)


GLOO_WORKS = SelfTest(backend="gloo", passed=True, ranks=2, seconds=2.5e-4)
GLOO_FAILS = SelfTest(backend="gloo", passed=False, ranks=2, reason="rank 1 was killed by SIGKILL")
SHM_WORKS = SelfTest(backend="shm", passed=True, ranks=2, seconds=1.1e-5)
NCCL_MISSING = SelfTest(backend="nccl", passed=False, ranks=0, reason="no CUDA device")


@without_cuda
def test_this_machine_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    firsts = [line for line in out.splitlines() if not line.startswith((" ", "backend"))]
    lines = dict(line.split(maxsplit=1) for line in firsts)
    assert f"{usable_cores()} usable cores" in lines["cpu"]
    assert "none visible" in lines["gpu"]
    assert f"torch {torch.__version__}" in lines["versions"]
    assert lines["needs"] == "Python 3.11, torch 2.9, or later"
    gloo, nccl, shm, *_ = (line for line in out.splitlines() if line.startswith("backend"))
    assert gloo.startswith("backend   gloo: works: 4 KiB all-reduce between 2 ranks in ")
    assert nccl.startswith("backend   nccl: not usable: ")
    assert shm.startswith("backend   shm: works: 4 KiB all-reduce between 2 ranks in ")


def test_json_has_the_environment_and_every_backend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers(monkeypatch, gloo=GLOO_WORKS, shm=SHM_WORKS)
    assert run(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"environment", "backends"}
    assert document["environment"]["cores"] == usable_cores()
    assert dict(document["environment"]["versions"])["torch"] == torch.__version__
    assert [test["backend"] for test in document["backends"]] == list(BACKENDS)
    assert document["backends"][0] == {
        "backend": "gloo",
        "passed": True,
        "ranks": 2,
        "seconds": 2.5e-4,
        "reason": None,
    }


@pytest.mark.parametrize(
    ("gloo", "words", "expected"),
    [
        (GLOO_FAILS, [], "backend   gloo: failed: rank 1 was killed by SIGKILL"),
        (GLOO_WORKS, ["--gpus", "999"], "--gpus 999: this machine has "),
    ],
)
def test_too_few_gpus_and_a_backend_that_fails_are_exit_status_1(
    gloo: SelfTest,
    words: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers(monkeypatch, gloo=gloo, shm=SHM_WORKS)
    assert run(["doctor", *words]) == 1
    printed = "".join(capsys.readouterr())
    assert expected in printed
    assert "backend   nccl: not usable: no CUDA device" in printed
