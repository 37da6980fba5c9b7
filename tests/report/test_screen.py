"""What a terminal shows: one verdict, one warning, the table, one line of where to read on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpbench.report.screen import screen
from tests.analysis.builders import PASSED, run, trial
from tests.report.sample import subject
from tests.report.test_headline import measured


def test_one_warning_is_shown_and_the_others_are_notes() -> None:
    warned = replace(measured(), warnings=("the machine was busy", "another one"))
    page, folder = Path("r/report/index.html"), Path("r")
    short = screen(warned, page=page, folder=folder)
    assert short.count("Warning: ") == 1
    assert "another one" not in short
    last = short.splitlines()[-1]
    assert last.startswith("Report: r/report/index.html   Next: dpbench explain r   (")
    assert last.endswith(" notes: --verbose)")
    assert "· another one" in screen(warned, verbose=True)


def test_a_loss_that_is_not_a_mean_is_a_warning() -> None:
    proof = replace(PASSED, is_sample_mean=False)
    text = screen(
        subject([run(trial(repetition=n), 100.0 + n, verification=proof) for n in (0, 1)])
    )
    assert "Warning: your loss is not a mean over samples" in text


def test_a_small_sweep_leaves_its_table_on_a_terminal_of_24_lines() -> None:
    names = ("dp", "ddp", "torch-ddp", "independent")
    runs = [
        run(trial(name, group_size=size, repetition=number), 100.0 * size + number)
        for name in names
        for size in (1, 2)
        for number in range(3)
    ]
    lines = screen(subject(runs), width=80, page=Path("p")).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert len(lines) <= 24


def test_what_comes_next_takes_two_lines_where_one_is_too_wide() -> None:
    page, folder = Path("results/a-long-name/report/index.html"), Path("results/a-long-name")
    lines = screen(measured(), width=80, page=page, folder=folder).splitlines()[-2:]
    assert [line.split(":")[0] for line in lines] == ["Report", "Next"]
    assert all(len(line) <= 80 for line in lines)


def test_a_published_table_has_no_verdict() -> None:
    text = screen(replace(measured(), sweep=None))
    assert text.startswith("All 4 rows: backend gloo, batch 32\n\nImplementation")
