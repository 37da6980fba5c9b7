"""`dpbench doctor`: the machine in words, and whether each backend works on it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from dpbench.cli.app import run
from dpbench.launch.machine import Machine
from dpbench.records.collectives import CollectiveRecord, SizeTiming
from dpbench.records.environment import usable_cores
from dpbench.records.trial import Status
from dpbench.run import doctor
from dpbench.specs.collective import CollectiveSpec
from dpbench.specs.traits import BACKENDS

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without GPU")


def answers(monkeypatch: pytest.MonkeyPatch, **by_backend: CollectiveRecord) -> None:
    def answer(backend: str, machine: Machine) -> CollectiveRecord:
        tested = by_backend.get(backend, MISSING)
        return replace(tested, spec=replace(tested.spec, backend=backend))

    monkeypatch.setattr(doctor, "self_test", answer)


SPEC = CollectiveSpec(
    collective="all_reduce",
    backend="gloo",
    group_size=2,
    devices=("cpu", "cpu"),
    sizes_bytes=(4096,),
    threads=1,
)
TIMING = SizeTiming(nbytes=4096, seconds=(2e-4, 2.5e-4, 1.0), largest_error=0.0)
WORKS = CollectiveRecord(spec=SPEC, status=Status.COMPLETED, ranks=((TIMING,),) * 2)
FAILS = CollectiveRecord(spec=SPEC, status=Status.FAILED, reason="rank 1 was killed")
MISSING = CollectiveRecord(spec=SPEC, status=Status.SKIPPED, reason="no CUDA device")


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
    answers(monkeypatch, gloo=WORKS, shm=WORKS)
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
        (FAILS, [], "backend   gloo: failed: rank 1 was killed"),
        (WORKS, ["--gpus", "999"], "--gpus 999: this machine has "),
    ],
)
def test_too_few_gpus_and_a_backend_that_fails_are_exit_status_1(
    gloo: CollectiveRecord,
    words: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answers(monkeypatch, gloo=gloo, shm=WORKS)
    assert run(["doctor", *words]) == 1
    printed = "".join(capsys.readouterr())
    assert expected in printed
    assert "backend   nccl: not usable: no CUDA device" in printed
