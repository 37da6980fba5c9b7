"""Charts as files: whole, equal for equal data, and of any name."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from dpbench.analysis.summary import summarize
from dpbench.report.charts.files import stem_of, write_charts, write_figure
from dpbench.report.charts.kinds import CHARTS, IMAGE_FORMATS
from dpbench.report.charts.source import ChartSource, NothingToDraw
from dpbench.report.charts.style import finish, house_style, panels
from tests.analysis.builders import run, trial

SOURCE = ChartSource(rows=(), environments={}, name="demo")
STARTS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


def small(source: ChartSource) -> Figure:
    figure, (axes,) = panels(1)
    axes.plot([1, 2], [1, 2])
    return finish(figure, title="Small", caption=source.caption([], []))


def empty(_: ChartSource) -> Figure:
    raise NothingToDraw("nothing was measured")


def test_equal_data_gives_equal_files(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        paths, remarks = write_charts(tmp_path / folder, {"small": small}, SOURCE, IMAGE_FORMATS)
        assert remarks == []
        assert [path.name for path in paths] == ["small.png", "small.svg", "small.pdf"]
    for image, start in STARTS.items():
        one, other = ((tmp_path / folder / f"small.{image}").read_bytes() for folder in "ab")
        assert one.startswith(start)
        assert one == other
    assert ">Small</text>" in (tmp_path / "a" / "small.svg").read_text()


def test_what_has_nothing_to_show_is_said_and_its_old_files_go(tmp_path: Path) -> None:
    for image in IMAGE_FORMATS:
        (tmp_path / f"empty.{image}").touch()
    paths, (remark,) = write_charts(tmp_path, {"empty": empty}, SOURCE)
    assert paths == []
    assert remark == "no chart empty: nothing was measured"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["$x^", r"$\frac$ $\badcommand$", "a\nb\x00\x1b[31m", "<&>", "統計"]
)
def test_no_name_stops_a_chart(tmp_path: Path, name: str) -> None:
    source = ChartSource(rows=(), environments={}, name=name)
    with house_style():
        path = write_figure(small(source), tmp_path / "small.SVG")
    text = path.read_text()
    assert not {"\x00", "\x1b"} & set(text)


def test_a_style_of_the_user_changes_nothing(tmp_path: Path) -> None:
    import matplotlib as mpl

    with house_style():
        first = write_figure(small(SOURCE), tmp_path / "a.png").read_bytes()
    with mpl.rc_context({"lines.linewidth": 9, "axes.facecolor": "black", "font.size": 30}):
        with house_style():
            second = write_figure(small(SOURCE), tmp_path / "b.png").read_bytes()
        assert mpl.rcParams["lines.linewidth"] == 9
    assert first == second


def test_a_chart_of_several_works_is_a_file_for_each_whose_title_says_which(
    tmp_path: Path,
) -> None:
    specs = [
        trial(scaling=scaling, group_size=n, compared=("scaling",))
        for scaling in ("weak", "strong")
        for n in (1, 2)
    ]
    records = tuple(run(spec, 100.0 * spec.group_size) for spec in specs)
    source = ChartSource(rows=summarize(records), records=records, environments={}, name="demo")
    paths, remarks = write_charts(tmp_path, {"speedup": CHARTS["speedup"].draw}, source)
    assert remarks == []
    assert {path.name for path in paths} == {"speedup-weak.svg", "speedup-strong.svg"}
    text = (tmp_path / "speedup-weak.svg").read_text()
    assert ">Speedup by group size: weak</text>" in text
    assert ">ddp/gloo</text>" in text
    assert "strong" not in text


def test_the_name_of_a_file_has_no_letters_that_a_folder_would_be_read_of() -> None:
    assert stem_of("speedup", "") == "speedup"
    assert stem_of("speedup", "mlp:depth=3, strong") == "speedup-mlp-depth=3-strong"
    paths = ("../a/m.py:f", "a/m.py:f", "a-m.py:f", "./a-m.py:f")
    assert len({stem_of("speedup", path) for path in paths}) == len(paths)
    assert all(stem_of("speedup", path).startswith("speedup-a-m.py-f-") for path in paths)
