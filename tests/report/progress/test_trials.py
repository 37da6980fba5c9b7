"""What a sweep says while it runs: how far, how fast, how much longer, and what went wrong."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from dpbench.messages import say
from dpbench.records.trial import Status
from dpbench.report.progress import trials as progress
from dpbench.report.progress.state import ProgressState, Row
from dpbench.report.progress.terminal import REDRAWS_PER_SECOND, can_draw
from dpbench.report.progress.trials import (
    Columns,
    Lines,
    Live,
    Silent,
    _around,
    bar,
    fitted,
    frame,
    reporter,
)
from dpbench.specs import TrialSpec
from tests.analysis.builders import record, run, trial
from tests.report.progress.palindrome import PALINDROME, A, B, again, skipped, took


def grid(batches: int) -> list[TrialSpec]:
    return [trial("ddp", "gloo", group_size=2, batch_size=8 * (n + 1)) for n in range(batches)]


def state_of(specs: list[TrialSpec], *, done: int = 0) -> ProgressState:
    state = ProgressState()
    state.planned([replace(spec, repetition=r) for r in range(2) for spec in specs])
    for number, spec in enumerate(specs[:done]):
        state.finished(run(spec, 1000.0 * (number + 1), duration_seconds=10.0))
    if done < len(specs):
        state.started(specs[done])
    return state


def lines(state: ProgressState, width: int, height: int) -> list[str]:
    return frame(state, width, height).plain.split("\n")


def test_a_frame_in_a_hundred_columns() -> None:
    state = state_of(grid(5), done=2)
    failed = record(grid(5)[3], status=Status.FAILED, reason="rank 1 raised [oops]\x1b[31m")
    state.finished(failed)
    state.started(grid(5)[2])
    assert lines(state, 100, 20) == [
        "state    configuration          runs  images/s",
        "queued   ddp/gloo ×2, batch 8    1/2     1,000  " + "━" * 24,
        "queued   ddp/gloo ×2, batch 16   1/2     2,000  " + "━" * 48,
        "running  ddp/gloo ×2, batch 24   0/2",
        "failed   ddp/gloo ×2, batch 32   1/2  failed: rank 1 raised [oops] [31m",
        "queued   ddp/gloo ×2, batch 40   0/2",
        "",
        "ddp/gloo ×2, batch 24, repetition 1 of 2",
        "in all  " + "━" * 14 + "╸" + "─" * 33 + "  3/10 trials, 49 s left",
    ]


def test_sixty_columns_have_no_room_for_bars_of_long_names_and_none_wraps() -> None:
    specs = [trial("torch-ddp-static", "gloo", group_size=2, batch_size=128)]
    assert lines(state_of(specs, done=1), 60, 12) == [
        "state    configuration                        runs  images/s",
        "queued   torch-ddp-static/gloo ×2, batch 128   1/2     1,000",
        "",
        "in all  ━━━━━━━━━━━━━━╸──────────────  1/2 trials, 10 s left",
    ]


def test_forty_columns_have_no_runs_and_a_shorter_name() -> None:
    specs = [trial("torch-ddp-static", "gloo", group_size=2, batch_size=128)]
    assert lines(state_of(specs, done=1), 43, 12)[:2] == [
        "state    configuration             images/s",
        "queued   torch-ddp-static/gloo ×…     1,000",
    ]


@pytest.mark.parametrize(
    ("running", "rows"),
    [
        (0, [*range(8), "↓ 248 rows below: 248 queued"]),
        (3, [*range(8), "↓ 248 rows below"]),
        (100, ["↑ 97 rows above", *range(97, 104), "↓ 152 rows below"]),
        (255, ["↑ 248 rows above", *range(248, 256)]),
    ],
)
def test_of_a_large_grid_the_part_around_the_running_row_is_shown(
    running: int, rows: list[int | str]
) -> None:
    specs = grid(256)
    state = state_of(specs)
    state.started(specs[running])
    shown = lines(state, 100, 13)
    table = shown[1 : shown.index("")]
    assert len(shown) == 13
    for line, row in zip(table, rows, strict=True):
        expected = row.split(":")[0] if isinstance(row, str) else f"batch {8 * (row + 1)} "
        assert expected in line


def test_what_is_not_shown_is_counted_by_state() -> None:
    state = state_of(grid(20), done=10)
    state.finished(record(grid(20)[0], status=Status.FAILED, reason="no"))
    shown = lines(state, 100, 13)
    assert shown[1] == "↑ 6 rows above: 5 queued, 1 failed"


def test_a_low_terminal_shows_the_trial_alone() -> None:
    state = state_of(grid(20), done=3)
    shown = lines(state, 100, 8)
    assert [line.split("  ")[0] for line in shown] == [
        "ddp/gloo ×2, batch 32, repetition 1 of 2",
        "in all",
    ]
    assert len(lines(state, 100, 2)) == 2


def test_a_plan_that_may_grow_says_so() -> None:
    state = ProgressState(grows=True)
    state.planned(grid(1))
    assert lines(state, 100, 20)[-1].endswith("0/1 trial, more may follow")


def test_without_colours_the_words_are_there() -> None:
    console = Console(width=100, height=30, force_terminal=True, no_color=True)
    with console.capture() as captured:
        console.print(frame(state_of(grid(2), done=1), 100, 20))
    written = captured.get()
    assert "running" in written
    assert not any(f"\x1b[{code}m" in written for code in (31, 32, 33, 34, 36))


@given(
    width=st.integers(20, 250),
    height=st.integers(1, 60),
    rows=st.integers(1, 70),
    data=st.data(),
)
def test_no_frame_is_wider_or_higher_than_the_terminal(
    width: int, height: int, rows: int, data: st.DataObject
) -> None:
    state = state_of(grid(rows), done=data.draw(st.integers(0, min(rows, 3))))
    shown = lines(state, width, height)
    assert len(shown) <= height
    assert max(map(cell_len, shown)) <= width


@given(room=st.integers(3, 40), count=st.integers(1, 100), data=st.data())
def test_the_running_row_is_always_among_those_shown(
    room: int, count: int, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, count - 1))
    first, end = _around(place, count, room)
    assert 0 <= first <= place < end <= count
    assert (first > 0) + (end - first) + (end < count) <= room


def test_bars_and_texts_have_the_width_that_they_are_given() -> None:
    assert [bar(0.0, 4), bar(0.5, 4), bar(0.6, 4), bar(1.0, 4)] == ["", "━━", "━━╸", "━━━━"]
    assert [fitted("naïve", 6), fitted("naïve", 3), fitted("日本語", 4)] == [
        "naïve ",
        "na…",
        "日 …",
    ]


def test_speeds_of_several_works_are_items_and_bars_within_each() -> None:
    rows = [
        Row(label=f"ddp({work}) ×{n}", work=work, item=item, speed=speed * n)
        for work, item, speed in (("mlp", "images", 1000.0), ("gpt", "tokens", 10.0))
        for n in (1, 2)
    ]
    columns = Columns.fitting(rows, 120)
    assert columns.unit == "items/s"
    assert columns.fastest == {"mlp": 2000.0, "gpt": 20.0}
    assert Columns.fitting(rows[:2], 120).unit == "images/s"


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
    with Live(out, ProgressState()) as view:
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
    with Live(out, ProgressState()) as view:
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
    view = Live(out, ProgressState())
    assert view._view.refresh_per_second == REDRAWS_PER_SECOND <= 2
