"""dpbench check as a job calls it: what it measures, prints and writes, and its exit status."""

from __future__ import annotations

import json
import random
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dpbench import folders
from dpbench.cli.app import run
from dpbench.records.trial import Status, TrialRecord, Window
from dpbench.specs import Configuration
from tests.analysis.builders import NOISY, QUIET, WRONG, record, runs, slower, trial
from tests.cli.stored import stored
from tests.launch import synthetic

pytestmark = pytest.mark.usefixtures("here", "signals", "synthetic")

BOTH = ("--gpus", "2", "--quiet")


def sweep(name: str, throughputs: Sequence[float], *more: TrialRecord) -> str:
    """A stored sweep in the working directory, by its name."""
    return str(stored(Path(name), [*runs(trial(), throughputs), *more]))


def test_noise_does_not_fail() -> None:
    assert run(["check", sweep("new", NOISY), "--baseline", sweep("old", QUIET)]) == 0


def test_wrong_gradients_come_before_failures_and_both_before_speed() -> None:
    old = sweep("old", QUIET)
    failed = record(trial(batch_size=8), status=Status.FAILED, reason="rank 1 was killed")
    wrong = record(trial(batch_size=4), status=Status.WRONG_GRADIENTS, verification=WRONG)
    slow = slower(QUIET, 0.10)
    one = sweep("one", slow, failed)
    both = sweep("both", slow, failed, wrong)
    assert run(["check", one, "--baseline", old]) == 1
    assert run(["check", both, "--baseline", old]) == 6


def test_every_output_tells_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    new, old = sweep("new", slower(QUIET, 0.10)), sweep("old", QUIET)
    files = ["--junit", "j.xml", "--markdown", "m.md"]
    status = run(["check", new, "--baseline", old, "--json", *files])
    out, _ = capsys.readouterr()
    data = json.loads(out)
    assert (status, data["exit_status"], data["outcome"]) == (3, 3, "regressed")
    suites = ElementTree.parse("j.xml").getroot()
    assert suites.get("failures") == "1"
    assert Path("m.md").read_text().startswith("### dpbench check: regressed")


def test_the_largest_group_alternates_with_its_baseline_until_the_verdict_is_clear(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    window, sequence = synthetic.window, random.Random(6)
    factors = defaultdict[tuple[Configuration, int], float](
        lambda: sequence.lognormvariate(0.0, 0.04)
    )

    def noisy(trial: tuple[Configuration, int], rank: int, seconds: float, *rest: Any) -> Window:
        """Every run takes its own factor of time."""
        return window(trial, rank, seconds * factors[trial], *rest)

    monkeypatch.setattr(synthetic, "window", noisy)
    target = ("--name", "now", "--tolerance", "6%", "--strict")
    assert run(["check", "--against", "torch-ddp", *BOTH, *target]) == 0
    assert "ddp (candidate) against torch-ddp" in capsys.readouterr().out
    assert Path("results/now/.gitignore").read_text() == "*\n"
    records = folders.load_sweep(Path("results/now")).records
    names = [record.configuration.implementation for record in records]
    one_pass = ["ddp", "torch-ddp"]
    assert names[:10] == [*one_pass, *reversed(one_pass)] * 2 + one_pass
    assert names.count("ddp") == names.count("torch-ddp") > 5
    assert {record.configuration.group_size for record in records} == {2}
    assert not any(record.configuration.has_unsynced_window for record in records)


@pytest.mark.parametrize(
    ("against", "options"), [("torch-ddp", ("--group-sizes", "1,max")), ("single", ())]
)
def test_other_groups_are_checked_where_they_or_single_are_asked_for(
    against: str, options: tuple[str, ...]
) -> None:
    assert run(["check", "--against", against, *BOTH, *options, "--name", "now"]) == 0
    records = folders.load_sweep(Path("results/now")).records
    assert {record.configuration.group_size for record in records} == {1, 2}
