"""What a terminal shows: one verdict, one warning, the table, one line of where to read on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpbench.report.screen import last_line, screen
from tests.analysis.builders import run, trial
from tests.report.sample import sample_records, subject
from tests.report.test_headline import measured


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
