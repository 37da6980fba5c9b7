"""The report folder: which files, what is left out, and how long it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.analysis.published import from_csv
from dpbench.analysis.summary import summarize
from dpbench.environment import capture
from dpbench.report.charts import CHARTS
from dpbench.report.charts.curves import chosen
from dpbench.report.charts.source import ChartSource, NothingToDraw, environment_line
from dpbench.report.document import write_report
from tests.analysis.builders import run, trial
from tests.report.sample import sample_records

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
TABLES = {"table.txt", "table.md", "table.csv", "table.json"}
PNG = b"\x89PNG"


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def write(folder: Path, records: list, **options: bool):
    return write_report(
        folder,
        summarize(records),
        records=records,
        environments={"e0": capture()},
        name="demo",
        **options,
    )


def test_all_files_are_written(tmp_path: Path) -> None:
    written = write(tmp_path / "report", sample_records())
    charts = {f"charts/{name}.{image}" for name in CHARTS for image in ("png", "svg")}
    assert names(tmp_path / "report") == TABLES | charts
    assert len(written.paths) == len(TABLES | charts)
    assert written.remarks == ()
    for path in written.paths:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(PNG)
        if path.suffix == ".svg":
            text = path.read_text()
            assert "torch-ddp/gloo" in text
            assert "demo" in text


def test_equal_data_gives_equal_files(tmp_path: Path) -> None:
    rows = from_csv(PUBLISHED / "torch_ddp_rtx3090.csv")
    for folder in ("a", "b"):
        write_report(tmp_path / folder, rows, name="published")
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_charts_without_data_are_said_and_old_ones_removed(tmp_path: Path) -> None:
    write(tmp_path, sample_records(repetitions=1))
    written = write(tmp_path, [run(trial(), 100.0, losses=())])
    assert [remark.split(":")[0] for remark in written.remarks] == [
        f"no chart {name}" for name in CHARTS
    ]
    assert names(tmp_path) == TABLES


def test_without_charts_old_ones_are_said_to_be_old(tmp_path: Path) -> None:
    assert write(tmp_path, sample_records(repetitions=1), charts=False).remarks == ()
    write(tmp_path, sample_records(repetitions=1))
    (remark,) = write(tmp_path, sample_records(repetitions=1), charts=False).remarks
    assert "older than the table" in remark


def test_published_times_have_an_efficiency_chart(tmp_path: Path) -> None:
    write_report(tmp_path, from_csv(PUBLISHED / "tabtune_tabicl.csv"), name="tabicl")
    assert "charts/efficiency_by_group_size.svg" in names(tmp_path)


def test_no_rows_at_all(tmp_path: Path) -> None:
    written = write_report(tmp_path, (), name="nothing")
    assert len(written.remarks) == len(CHARTS)


def test_hundreds_of_configurations_are_reported(tmp_path: Path) -> None:
    records = sample_records(
        group_sizes=(1, 2, 4, 8, 16, 32, 64), batch_sizes=(1, 2, 4, 8, 16, 32, 64, 128)
    )
    records += sample_records(group_sizes=(3, 5, 6), batch_sizes=(24, 48, 96))
    assert len(records) >= 700
    written = write(tmp_path, records)
    assert len(written.paths) == len(TABLES) + 2 * len(CHARTS)


def test_panels_that_are_left_out_are_said() -> None:
    batch_sizes = tuple(range(8, 72, 8))
    records = sample_records(batch_sizes=batch_sizes, repetitions=1)
    source = ChartSource(
        rows=summarize(records), records=tuple(records), environments={}, name="many"
    )
    figure = CHARTS["throughput_by_group_size"](source)
    assert len(figure.axes) == 6
    caption = figure.get_supxlabel()
    assert "batch sizes 8, 16, 32, 40, 56, 64 of 8 measured" in caption.replace("\n", " ")


def test_chosen_keeps_both_ends() -> None:
    assert chosen([3, 1, 2]) == [1, 2, 3]
    assert chosen(list(range(1, 101)), 4) == [1, 34, 67, 100]


@pytest.mark.parametrize("name", CHARTS)
def test_charts_of_nothing_say_so(name: str) -> None:
    with pytest.raises(NothingToDraw):
        CHARTS[name](ChartSource(rows=(), environments={}, name="nothing"))


def test_the_environment_in_a_few_words() -> None:
    here = capture()
    line = environment_line({"a": here}, {"a"})
    assert here.cpu in line
    assert "torch" in line
    assert environment_line({}, set()) == "environment not recorded"
    assert environment_line({"a": here}, {"a", "b"}) == "environments a, b"
