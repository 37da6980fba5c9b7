"""What a terminal shows: one verdict, one warning, the table, one line of where to read on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpbench.analysis.subject import of_published
from dpbench.report.page import build_page
from dpbench.report.screen import screen
from dpbench.shipped import RESULTS
from tests.analysis.builders import run, trial
from tests.report.pages import to_html
from tests.report.sample import measured, subject


def test_one_warning_is_shown_and_the_others_are_notes() -> None:
    warned = replace(measured(), warnings=("the machine was busy", "another one"))
    page, folder = Path("r/report/index.html"), Path("r")
    short = screen(warned, page=page, to_explain=folder)
    assert short.count("Warning: ") == 1
    assert "another one" not in short
    last = short.splitlines()[-1]
    assert last.startswith("Report: r/report/index.html   Next: dpbench explain r   (")
    assert last.endswith(" notes: --verbose)")
    assert "· another one" in screen(warned, verbose=True)
    alone = subject([run(trial("single", "none", repetition=n), 100.0 + n) for n in (0, 1)])
    assert "Next:" not in screen(alone, to_explain=folder)  # explain has nothing to explain


def test_terminal_and_page_have_the_same_notes_and_columns() -> None:
    """Both explain why the copies, which are faster, are not called the fastest."""
    runs = [
        run(trial(name, backend, size, 16 * size, repetition=number), speed * size + number)
        for name, backend, speed in (("ddp", "gloo", 100.0), ("independent", "none", 200.0))
        for size in (1, 2)
        for number in range(3)
    ]
    one = subject(runs)
    (results,) = (s for s in build_page(one).sections if s.key == "results")
    text = screen(one)
    assert text.startswith("Fastest: ddp/gloo ×2, batch 32 at 201 ± ")
    assert f"({len(results.notes)} notes: --verbose)" in " ".join(text.split())
    header = next(line for line in text.splitlines() if line.startswith("Implementation"))
    (table,) = results.tables
    shown = [column.header for column in table.columns if column.shown]
    assert " ".join(header.split()) == " ".join(shown)
    assert "independent*" in text
    assert "independent*" in table.columns[0].cells
    assert table.footnote == "* copies without communication: an upper bound, not a way to train"
    assert f"\n{table.footnote}\n" in text
    assert table.footnote in to_html(build_page(one))


def test_a_published_table_has_its_source_and_the_serial_fraction_beside_its_speedups() -> None:
    text = screen(of_published(RESULTS / "published" / "tabtune_typical_speedups.csv"), width=80)
    header, _, *lines = text.split("\n\n")[0].splitlines()
    assert header.split() == ["Implementation", "Size", "Speedup", "Eff.", "Serial"]
    assert [line.split()[-1] for line in lines] == ["0.111", "0.048", "0.033"]
    assert "· source: TabTune's multi-GPU guide, section 8.2" in text


def test_a_published_table_has_no_verdict() -> None:
    text = screen(replace(measured(), sweep=None))
    assert text.startswith("All 4 rows: batch size 32\nImplementation")
