"""Charts as files: whole, equal for equal data, and of any name."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dpbench.analysis.analyze import Analysis
from dpbench.report.charts.figures import captioned, house_style, panels, stem_of, write_figure
from dpbench.report.charts.kinds import CHARTS
from tests.analysis.builders import run, trial
from tests.report.sample import analysis

STARTS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


def small(name: str = "demo") -> Figure:
    figure, [axes] = panels(["one"], [1.0])
    axes.plot([1, 2], [1, 2])
    figure.suptitle("Loss over time")
    return captioned(figure, Analysis(name=name), [], [])


def test_equal_data_gives_equal_files_whatever_the_style_of_the_user(tmp_path: Path) -> None:
    import matplotlib as mpl

    for image, start in STARTS.items():
        with house_style():
            first = write_figure(small(), tmp_path / f"a.{image}").read_bytes()
        with mpl.rc_context({"lines.linewidth": 9, "axes.facecolor": "black", "font.size": 30}):
            with house_style():
                second = write_figure(small(), tmp_path / f"b.{image}").read_bytes()
            assert mpl.rcParams["lines.linewidth"] == 9
        assert first.startswith(start)
        assert first == second
    assert ">Loss over time</text>" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize(
    "name", ["$x^", r"$\frac$ $\badcommand$", "a\nb\x00\x1b[31m", "<&>", "統計"]
)
def test_no_name_stops_a_chart(tmp_path: Path, name: str) -> None:
    with house_style():
        path = write_figure(small(name), tmp_path / "small.SVG")
    text = path.read_text()
    assert not {"\x00", "\x1b"} & set(text)


def test_a_chart_of_several_works_is_one_for_each_whose_title_says_which() -> None:
    specs = [trial(scaling=scaling, group_size=n) for scaling in ("weak", "strong") for n in (1, 2)]
    titles = []
    found = analysis([run(spec, 100.0 * spec.group_size) for spec in specs])
    for work in found.by_work.values():
        figure = CHARTS["speedup"].draw(work)
        titles.append(figure.get_suptitle())
        assert "ddp/gloo" in figure.axes[0].get_legend_handles_labels()[1]
    assert sorted(titles) == ["Speedup by group size: strong", "Speedup by group size: weak"]


def test_the_name_of_a_file_has_no_letters_that_a_folder_would_be_read_of() -> None:
    assert stem_of("speedup", "") == "speedup"
    assert stem_of("speedup", "mlp:depth=3, strong") == "speedup-mlp-depth=3-strong"
    assert stem_of("speedup", "../a/m.py:f") == "speedup-a-m.py-f"
