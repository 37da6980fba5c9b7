"""dpbench plot as people call it: which files it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.cli.app import run
from dpbench.shipped import RESULTS
from tests.analysis.builders import run as run_of
from tests.analysis.builders import trial, varied, weak_sweep
from tests.cli.stored import stored

pytestmark = pytest.mark.usefixtures("synthetic")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of one and two replicas; nothing here writes into it but what a test names."""
    folder = tmp_path_factory.mktemp("plot") / "demo"
    return stored(folder, [record for i in range(3) for record in weak_sweep(i)])


def test_charts_go_into_the_report_and_their_paths_to_stdout(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plot", "throughput, speedup", str(folder)]) == 0
    charts = folder / "report" / "charts"
    files = [
        charts / name for name in ("throughput.png", "throughput.svg", "speedup.png", "speedup.svg")
    ]
    assert capsys.readouterr().out.splitlines() == [str(file) for file in files]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert "ddp/gloo" in files[1].read_text()


def test_works_whose_names_give_one_file_have_a_chart_each(tmp_path: Path) -> None:
    names = ("甲.py:make", "乙.py:make")
    specs = [varied(trial(group_size=n), architecture=name) for name in names for n in (1, 2)]
    sweep = stored(tmp_path / "s", [run_of(spec, 100.0) for spec in specs])
    assert run(["plot", "throughput", str(sweep), "--format", "svg"]) == 0
    drawn = sorted(path.name for path in (sweep / "report" / "charts").iterdir())
    assert drawn == ["throughput-py-make-2.svg", "throughput-py-make.svg"]


def test_a_chart_in_another_folder_of_rows_that_are_wanted(folder: Path, tmp_path: Path) -> None:
    words = ["--output", str(tmp_path / "new"), "--format", "pdf,svg", "--implementations", "ddp"]
    assert run(["plot", "efficiency", str(folder), *words]) == 0
    assert (tmp_path / "new" / "efficiency.pdf").read_bytes().startswith(b"%PDF")
    svg = (tmp_path / "new" / "efficiency.svg").read_text()
    assert ">ddp/gloo<" in svg
    assert ">independent<" not in svg


def test_all_draws_what_there_is_of_a_table_and_says_what_there_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = RESULTS / "published" / "torch_ddp_rtx3090.csv"
    assert run(["plot", "all", str(table), "--format", "svg", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    drawn = {f"{name}.svg" for name in ("throughput", "implementations", "speedup", "efficiency")}
    assert {path.name for path in tmp_path.iterdir()} == drawn
    assert str(tmp_path / "throughput.svg") in printed.out.splitlines()
    assert "no chart step-shares: " in printed.err
    assert "no chart bandwidth: no collective was measured at two sizes or more" in printed.err
