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


def test_the_largest_group_alternates_with_its_baseline_until_the_verdict_is_clear(
    tmp_path: Path,
    signals: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_noisy(monkeypatch, 0.04)
    target = ("--results-dir", tmp_path, "--name", "now", "--tolerance", "6%", "--strict")
    assert dpbench("check", "--against", "torch-ddp", *BOTH, *target) == 0
    assert "ddp (candidate) against torch-ddp" in capsys.readouterr().out
    records = store.load_sweep(tmp_path / "now").records
    names = [record.trial.implementation for record in records]
    one_pass = ["ddp", "torch-ddp"]
    assert names[:10] == [*one_pass, *reversed(one_pass)] * 2 + one_pass
    assert names.count("ddp") == names.count("torch-ddp") > 5
    assert {record.trial.group_size for record in records} == {2}


@pytest.mark.parametrize(
    ("against", "options"), [("torch-ddp", ("--group-sizes", "1,2")), ("single", ())]
)
def test_other_groups_are_checked_where_they_or_single_are_asked_for(
    against: str, options: tuple[str, ...], tmp_path: Path, signals: None
) -> None:
    place = ("--results-dir", tmp_path, "--name", "now")
    assert dpbench("check", "--against", against, *BOTH, *options, *place) == 0
    records = store.load_sweep(tmp_path / "now").records
    assert {record.trial.group_size for record in records} == {1, 2}
