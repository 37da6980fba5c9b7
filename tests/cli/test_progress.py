"""What a sweep says while it runs: how far, how fast, how much longer, and what went wrong."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from dpbench.cli import progress
from dpbench.cli.progress import Lines, Live, Silent, TimeLeft, describe, reporter
from dpbench.records import Status, TrialRecord
from dpbench.specs import TrialSpec
from tests.analysis.builders import record, run, trial

A, B = trial("dp", "threads", batch_size=8), trial("ddp", "gloo", group_size=2, batch_size=8)


def again(spec: TrialSpec, repetition: int = 1) -> TrialSpec:
    return replace(spec, repetition=repetition)


PALINDROME = [A, B, again(B), again(A)]


def took(spec: TrialSpec, seconds: float) -> TrialRecord:
    """A completed trial of 1,000 images/s that lasted so long in all."""
    return run(spec, 1000.0, duration_seconds=seconds)


def skipped(spec: TrialSpec) -> TrialRecord:
    return record(spec, status=Status.SKIPPED, reason="nccl needs a GPU", duration_seconds=0.0)


def test_the_time_left_follows_what_the_same_configurations_took() -> None:
    """A took 10: B, B and A remain, and B is taken for a typical trial: 10 + 10 + 10. Then B
    took 2: B and A remain. Then B took 4: only A remains."""
    left = TimeLeft(PALINDROME)
    assert left.seconds() is None
    left.finished(took(A, 10.0))
    assert left.seconds() == 30.0
    left.finished(took(B, 2.0))
    assert left.seconds() == 2.0 + 10.0
    left.finished(took(again(B), 4.0))
    assert left.seconds() == 10.0
    left.finished(took(again(A), 11.0))
    assert left.seconds() == 0.0


def test_an_unknown_configuration_is_taken_for_the_mean_of_those_measured() -> None:
    c = trial("single", "none", batch_size=8)
    left = TimeLeft([A, B, c])
    left.finished(took(A, 10.0))
    left.finished(took(B, 2.0))
    assert left.seconds() == 6.0


def test_a_skipped_trial_takes_no_time_and_says_nothing_of_the_others() -> None:
    left = TimeLeft(PALINDROME)
    left.finished(skipped(A))
    assert left.seconds() is None
    left.finished(took(B, 4.0))
    assert left.seconds() == 4.0 + 0.0  # B again, and A, which will be skipped again


@pytest.mark.parametrize(
    ("finished", "text"),
    [
        (took(B, 1.24), "ddp/gloo ×2, batch 8, repetition 1: 1,000 images/s (1.24 s)"),
        (took(again(A), 90.0), "dp ×1, batch 8, repetition 2: 1,000 images/s (1 min 30 s)"),
        (skipped(B), "ddp/gloo ×2, batch 8, repetition 1: skipped: nccl needs a GPU"),
        (
            record(B, status=Status.TIMED_OUT, reason="rank 1 was in loss (m.py:3)"),
            "ddp/gloo ×2, batch 8, repetition 1: timed out: rank 1 was in loss (m.py:3) (1 s)",
        ),
    ],
)
def test_a_record_is_described_in_one_line(finished: TrialRecord, text: str) -> None:
    assert describe(finished) == text


def console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, force_terminal=terminal, width=100, highlight=False), written


def test_there_is_a_line_for_every_trial_with_its_number_and_the_time_left() -> None:
    out, written = console()
    with Lines(out, PALINDROME) as lines:
        for finished in (took(A, 10.0), took(B, 2.0), skipped(again(B)), took(again(A), 10.0)):
            lines.started(finished.trial)
            lines.finished(finished)
    assert written.getvalue().splitlines() == [
        "[1/4] dp ×1, batch 8, repetition 1: 1,000 images/s (10 s), 30 s left",
        "[2/4] ddp/gloo ×2, batch 8, repetition 1: 1,000 images/s (2 s), 12 s left",
        "[3/4] ddp/gloo ×2, batch 8, repetition 2: skipped: nccl needs a GPU, 10 s left",
        "[4/4] dp ×1, batch 8, repetition 2: 1,000 images/s (10 s)",
    ]


def test_a_reason_is_printed_as_it_is_and_not_as_markup() -> None:
    reason = "rank 1 raised ValueError: shape [2, 3] of [bold]model[/bold] " + "x" * 200
    out, written = console()
    with Lines(out, [A]) as lines:
        lines.finished(record(A, status=Status.FAILED, reason=reason))
    assert written.getvalue().splitlines() == [
        f"[1/1] dp ×1, batch 8, repetition 1: failed: {reason} (1 s)"
    ]


def test_on_a_terminal_the_line_changes_and_failures_stay() -> None:
    out, written = console(terminal=True)
    with Live(out, PALINDROME) as live:
        live.started(A)
        live.finished(took(A, 10.0))
        live.started(B)
        live.finished(record(B, status=Status.FAILED, reason="rank 1 raised [oops]"))
    text = written.getvalue()
    assert "ddp/gloo ×2, batch 8, repetition 1: failed: rank 1 raised [oops] (1 s)\n" in text
    assert "2/4" in text
    assert "11 s left" in text  # the failed one took a second, the other ten
    assert "1,000 images/s (10 s)" not in text  # what worked is in the table


def test_quiet_is_silent_and_what_is_no_terminal_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with reporter([A], quiet=True) as quiet:
        quiet.started(A)
        quiet.finished(took(A, 1.0))
    assert capsys.readouterr() == ("", "")
    assert type(quiet) is Silent
    with reporter([A], quiet=False) as lines:
        lines.finished(took(A, 1.0))
    out, err = capsys.readouterr()
    assert (out, err.count("[1/1]")) == ("", 1)
    terminal = Console(file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr(progress, "Console", lambda **_: terminal)
    assert type(reporter([A], quiet=False)) is Live


def test_a_terminal_is_redrawn_seldom_enough_not_to_disturb() -> None:
    out, _ = console(terminal=True)
    live = Live(out, [A])
    assert live._progress.live.refresh_per_second == progress.REDRAWS_PER_SECOND <= 2
