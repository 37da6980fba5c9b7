"""What a terminal shows: one verdict, one warning, the table, one line of where to read on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpbench.analysis.subject import Subject
from dpbench.report.screen import last_line, screen, verdict
from tests.analysis.builders import run, trial
from tests.report.sample import sample_records, subject

SPEEDS = {("ddp", 1): 100.0, ("ddp", 2): 190.0, ("torch-ddp", 1): 98.0, ("torch-ddp", 2): 170.0}


def measured(spread: float = 0.001, **changes: object) -> Subject:
    """Two implementations at group sizes 1 and 2, in three repetitions."""
    return subject(
        [
            run(trial(name, group_size=size, repetition=number), speed * (1 + spread * number))
            for (name, size), speed in SPEEDS.items()
            for number in range(3)
        ],
        **changes,
    )


def test_the_fastest_configuration_is_named_with_its_interval_and_scaling() -> None:
    (line,) = verdict(measured().headlines)
    assert line.startswith("Fastest: ddp/gloo ×2, batch 32 at 190.2 ± ")
    assert "images/s, 95.0 ± " in line
    assert line.endswith(" % of linear scaling.")


def test_a_tie_is_no_winner() -> None:
    (line,) = verdict(measured(spread=0.1).headlines)
    assert line.startswith("No clear winner: ddp/gloo ×2, batch 32 at 2")
    assert "is statistically tied with torch-ddp/gloo ×2, batch 32" in line


def test_without_a_speed_the_verdict_has_the_reason() -> None:
    (line,) = verdict(subject([]).headlines)
    assert line == "No fastest configuration: no trial was recorded."


def test_several_works_have_a_verdict_each() -> None:
    runs = [
        run(trial(scaling=scaling, compared=("scaling",)), 100.0) for scaling in ("weak", "strong")
    ]
    assert [line.partition(":")[0] for line in verdict(subject(runs).headlines)] == [
        "strong",
        "weak",
    ]


def test_one_warning_is_shown_and_the_others_are_notes() -> None:
    shown = screen(replace(measured(), warnings=("the machine was busy", "another one")))
    assert shown.text.count("Warning: ") == 1
    assert "another one" not in shown.text
    assert any("another one" in note for note in shown.notes)


def test_a_small_sweep_leaves_its_table_on_a_terminal_of_24_lines() -> None:
    names = ("dp", "ddp", "torch-ddp", "independent")
    runs = [
        run(trial(name, group_size=size, repetition=number), 100.0 * size + number)
        for name in names
        for size in (1, 2)
        for number in range(3)
    ]
    found = screen(subject(runs), width=80)
    lines = found.text.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert len(lines) + 2 <= 24


def test_a_published_table_has_no_verdict() -> None:
    text = screen(replace(measured(), sweep=None)).text
    assert text.startswith("All 4 rows: backend gloo, batch 32\n\nImplementation")


def test_the_last_line_says_where_to_read_on() -> None:
    page, folder = Path("r/report/index.html"), Path("r")
    assert last_line(page, folder, ("a", "b")) == (
        "Report: r/report/index.html   Next: dpbench explain r   (2 notes: --verbose)"
    )
    assert last_line(None, None, ()) == ""


def test_sample_of_every_ending_fits_too() -> None:
    text = screen(subject(sample_records()), width=80).text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "nccl: skipped, nccl needs a CUDA device a rank; none is visible (2 rows)" in text
