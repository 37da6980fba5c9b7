"""What a sweep says while it runs: how far, how fast, how much longer, and what went wrong."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dpbench.messages import say
from dpbench.records import Status
from dpbench.report.progress import trials as progress
from dpbench.report.progress.state import ProgressState
from dpbench.report.progress.terminal import REDRAWS_PER_SECOND, can_draw
from dpbench.report.progress.trials import Lines, Live, Silent, reporter
from dpbench.store.live import LivePage
from tests.analysis.builders import record
from tests.report.progress.palindrome import PALINDROME, A, B, again, skipped, took


def console(*, terminal: bool = False) -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    sized = Console(file=written, force_terminal=terminal, width=100, height=30, highlight=False)
    return sized, written


def test_there_is_a_line_for_every_trial_with_its_number_and_the_time_left() -> None:
    out, written = console()
    with Lines(out) as lines:
        lines.planned(PALINDROME)
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
    with Lines(out) as lines:
        lines.planned([A])
        lines.finished(record(A, status=Status.FAILED, reason=reason))
    assert written.getvalue().splitlines() == [
        f"[1/1] dp ×1, batch 8, repetition 1: failed: {reason} (1 s)"
    ]


def test_on_a_terminal_the_view_changes_and_failures_stay() -> None:
    out, written = console(terminal=True)
    with LivePage() as page, Live(out, ProgressState(), page) as view:
        view.planned(PALINDROME)
        view.started(A)
        view.finished(took(A, 10.0))
        view.started(B)
        view.finished(record(B, status=Status.FAILED, reason="rank 1 raised [oops]"))
        view.started(again(B))
        view._view.refresh()
    text = written.getvalue()
    assert "ddp/gloo ×2, batch 8, repetition 1: failed: rank 1 raised [oops] (1 s)\n" in text
    assert "2/4 trials, 11 s left" in text  # the failed one took a second, the other ten
    assert "1,000 images/s (10 s)" not in text  # what worked is in the table


def test_what_is_said_meanwhile_is_written_above_the_view() -> None:
    out, written = console(terminal=True)
    with Live(out, ProgressState(), None) as view:
        view.planned(PALINDROME)
        say("3 rows of 4 not settled yet")
    assert "dpbench: 3 rows of 4 not settled yet\n" in written.getvalue()


def test_rows_of_an_earlier_run_are_there_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "Console", lambda **_: console(terminal=True)[0])
    monkeypatch.setattr(progress, "can_draw", lambda _: True)
    view = reporter(quiet=False, earlier=[took(A, 10.0), took(B, 2.0)])
    assert isinstance(view, Live)
    view.planned(PALINDROME[2:])
    assert view._frame().plain.endswith("2/4 trials, 12 s left")


def test_quiet_is_silent_and_what_is_no_terminal_gets_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with reporter(quiet=True) as quiet:
        quiet.started(A)
        quiet.finished(took(A, 1.0))
    assert capsys.readouterr() == ("", "")
    assert type(quiet) is Silent
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes no terminal of a pipe
    with reporter(quiet=False) as lines:
        lines.planned([A])
        lines.finished(took(A, 1.0))
    out, err = capsys.readouterr()
    assert (out, err.count("[1/1]")) == ("", 1)
    assert type(lines) is Lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert can_draw(Console(file=Terminal()))
    monkeypatch.setenv("TERM", "dumb")
    assert not can_draw(Console(file=Terminal()))


def test_a_terminal_is_redrawn_seldom_enough_not_to_disturb() -> None:
    out, _ = console(terminal=True)
    view = Live(out, ProgressState(), None)
    assert view._view.refresh_per_second == REDRAWS_PER_SECOND <= 2
