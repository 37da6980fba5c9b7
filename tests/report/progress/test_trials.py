"""Progress: a bar with the time left on a terminal, a line a trial anywhere else."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dpbench.records.trial import Status, TrialRecord
from dpbench.report.progress.trials import TrialProgress, can_draw
from dpbench.specs import Configuration
from tests.analysis.builders import record, run, trial

A, B = trial("dp", "threads", batch_size=8), trial("ddp", "gloo", group_size=2, batch_size=8)
PALINDROME = [A, B, B, A]


def took(spec: Configuration, seconds: float, repetition: int = 0) -> TrialRecord:
    """A completed trial of 1,000 images/s that lasted so long in all."""
    return run(spec, 1000.0, duration_seconds=seconds, repetition=repetition)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_no_terminal_gets_a_line_per_trial_with_the_time_left() -> None:
    out = io.StringIO()
    skipped = record(A, status=Status.SKIPPED, reason="no GPU", duration_seconds=0.0)
    with TrialProgress(Console(file=out, width=40)) as progress:
        progress.planned(PALINDROME)
        for one in (skipped, took(B, 9.0), took(B, 4.0, 1), took(A, 2.0, 1)):
            progress.finished(one)
        progress.planned([A, B])  # the second one has two windows
        progress.finished(took(A, 2.0))
    assert out.getvalue().splitlines() == [
        "[2/4] ddp/gloo ×2, batch 8, repetition 1: 1,000 images/s (9 s), 9 s of measuring left",
        "[3/4] ddp/gloo ×2, batch 8, repetition 2: 1,000 images/s (4 s)",
        "[4/4] dp ×1, batch 8, repetition 2: 1,000 images/s (2 s)",
        "[1/2] dp ×1, batch 8, repetition 1: 1,000 images/s (2 s), 4 s of measuring left",
    ]


def test_a_terminal_has_a_bar_and_keeps_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    terminal = Console(file=out, width=100, force_terminal=True, highlight=False)
    failed = record(B, status=Status.FAILED, reason="rank 1 raised [oops]", duration_seconds=2.0)
    with TrialProgress(terminal, noun="measurement") as progress:
        progress.planned(PALINDROME)
        progress.started(A)
        progress.finished(took(A, 10.0))
        progress.finished(failed)
    drawn = out.getvalue()
    assert "2/4" in drawn
    assert "measurements, 12 s of measuring left" in drawn
    assert "repetition 1: failed: rank 1 raised [oops] (2 s)\n" in drawn.replace("\r", "")


def test_nothing_is_drawn_on_a_dumb_terminal_and_quiet_is_silent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("xterm", "dumb"):
        monkeypatch.setenv("TERM", name)
        assert can_draw(Console(file=Terminal())) == (name == "xterm")
    with TrialProgress(quiet=True) as progress:
        progress.planned(PALINDROME)
        progress.finished(took(A, 1.0))
    assert capsys.readouterr() == ("", "")
