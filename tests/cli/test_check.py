"""dpbench check as a job calls it: what it measures, prints and writes, and its exit status."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dpbench import store
from dpbench.cli.app import run
from dpbench.records.environment import Environment
from dpbench.records.trial import Status, TrialRecord
from tests.analysis.builders import NOISY, QUIET, WRONG, record, runs, slower, trial
from tests.cli.stored import HERE, stored
from tests.cli.synthetic import dpbench, make_noisy

pytestmark = pytest.mark.usefixtures("synthetic")

BOTH = ("--gpus", "2", "--quiet")
SIZES = (*BOTH, "--group-sizes", "2")
Sweeps = Callable[..., Path]


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweeps:
    monkeypatch.chdir(tmp_path)

    def write(
        name: str,
        throughputs: Sequence[float],
        *more: TrialRecord,
        environment: Environment = HERE,
    ) -> Path:
        return stored(tmp_path / name, [*runs(trial(), throughputs), *more], environment)

    return write


@pytest.mark.parametrize(
    ("throughputs", "options", "status"),
    [
        (QUIET, [], 0),
        (slower(QUIET, 0.10), [], 3),
        (slower(QUIET, 0.10), ["--tolerance", "15%"], 0),
        (NOISY, [], 0),
        (NOISY, ["--strict"], 4),
    ],
)
def test_the_exit_status_is_the_outcome(
    sweep: Sweeps, throughputs: Sequence[float], options: list[str], status: int
) -> None:
    arguments = [str(sweep("new", throughputs)), "--baseline", str(sweep("old", QUIET))]
    assert run(["check", *arguments, *options]) == status


def test_wrong_gradients_come_before_failures_and_both_before_speed(sweep: Sweeps) -> None:
    old = sweep("old", QUIET)
    failed = record(trial(batch_size=8), status=Status.FAILED, reason="rank 1 was killed")
    wrong = record(trial(batch_size=4), status=Status.WRONG_GRADIENTS, verification=WRONG)
    slow = slower(QUIET, 0.10)
    one = sweep("one", slow, failed)
    both = sweep("both", slow, failed, wrong)
    assert run(["check", str(one), "--baseline", str(old)]) == 1
    assert run(["check", str(both), "--baseline", str(old)]) == 6


def test_one_repetition_is_inconclusive_but_none_cannot_be_compared(
    sweep: Sweeps, capsys: pytest.CaptureFixture[str]
) -> None:
    old = sweep("old", QUIET)
    one = sweep("one", QUIET[:1])
    none = sweep("none", [], record(trial(), status=Status.SKIPPED, reason="no CUDA device"))
    assert run(["check", str(one), "--baseline", str(old), "--strict"]) == 4
    assert " ".join(capsys.readouterr().out.split()).count("one repetition of") == 1
    assert run(["check", str(none), "--baseline", str(old)]) == 5
    assert capsys.readouterr().err == (
        "dpbench: nothing could be compared: ddp/gloo ×1, batch 32: no completed repetition of the "
        "candidate (skipped: no CUDA device)\n"
    )
    assert run(["check", str(sweep("two", QUIET)), "--baseline", str(none)]) == 5


def test_another_sweep_is_said_to_be_one(sweep: Sweeps, capsys: pytest.CaptureFixture[str]) -> None:
    run(["check", str(sweep("new", QUIET)), "--baseline", str(sweep("old", QUIET))])
    assert "what changed on the machine between them counts as a change" in " ".join(
        capsys.readouterr().out.split()
    )


def test_another_environment_is_refused_unless_forced(
    sweep: Sweeps, capsys: pytest.CaptureFixture[str]
) -> None:
    old = sweep("old", QUIET, environment=replace(HERE, cores=HERE.cores + 1))
    new = sweep("new", QUIET)
    assert run(["check", str(new), "--baseline", str(old)]) == 5
    assert f"cores: {HERE.cores + 1} -> {HERE.cores}" in capsys.readouterr().err
    assert run(["check", str(new), "--baseline", str(old), "--force"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"; differs: cores: {HERE.cores + 1} → {HERE.cores}" in said
    assert "--against-ref REV measures both versions of your code in turn" in said


def test_every_output_tells_the_same(
    sweep: Sweeps, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new, old = sweep("new", slower(QUIET, 0.10)), sweep("old", QUIET)
    files = ["--junit", "j.xml", "--markdown", "m.md"]
    status = run(["check", str(new), "--baseline", str(old), "--json", *files])
    out, _ = capsys.readouterr()
    data = json.loads(out)
    assert (status, data["exit_status"], data["outcome"]) == (3, 3, "regressed")
    suites = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert suites.get("failures") == "1"
    assert (tmp_path / "m.md").read_text().startswith("### dpbench check: regressed")


def test_the_candidate_alternates_with_its_baseline(
    tmp_path: Path, signals: None, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ("--results-dir", tmp_path, "--name", "now")
    assert dpbench("check", "--against", "torch-ddp", *SIZES, *target) == 0
    assert "ddp (candidate) against torch-ddp" in capsys.readouterr().out
    names = [r.trial.implementation for r in store.load(tmp_path / "now").records]
    pass_of = ["ddp", "torch-ddp"]
    assert names == [*pass_of, *reversed(pass_of)] * 2 + pass_of


def test_the_largest_group_alone_is_checked_unless_others_are_asked_for(
    tmp_path: Path, signals: None
) -> None:
    for name, against, options, sizes in (
        ("default", "torch-ddp", (), {2}),
        ("sizes", "torch-ddp", ("--group-sizes", "1,2"), {1, 2}),
        ("single", "single", (), {1, 2}),
    ):
        place = ("--results-dir", tmp_path, "--name", name)
        assert dpbench("check", "--against", against, *BOTH, *options, *place) == 0
        records = store.load(tmp_path / name).records
        assert {one.trial.group_size for one in records} == sizes


def test_repetitions_grow_while_it_is_inconclusive(
    tmp_path: Path, signals: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_noisy(monkeypatch, 0.04)
    target = ("--results-dir", tmp_path, "--name", "now", "--tolerance", "6%")
    assert dpbench("check", "--against", "torch-ddp", *SIZES, *target, "--strict") == 0
    done = store.load(tmp_path / "now").records
    counts = {n: sum(r.trial.implementation == n for r in done) for n in ("ddp", "torch-ddp")}
    assert counts["ddp"] == counts["torch-ddp"] > 5
    assert {r.trial.implementation for r in done} == {*counts}
