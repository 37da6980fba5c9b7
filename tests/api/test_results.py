"""`dpbench.load`: frames, tables and pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

import dpbench
from dpbench import folders
from dpbench.api.results import Results
from dpbench.cli.app import run
from dpbench.errors import UsageError
from tests.analysis.collective_records import collective_record, collective_spec
from tests.builders import command, sweep_spec
from tests.launch import synthetic
from tests.report.sample import stored_collectives

pytestmark = pytest.mark.usefixtures("synthetic")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """dp, ddp, and single beside them: 2 implementations × 2 group sizes × 1 batch, and one."""
    folder = tmp_path_factory.mktemp("results")
    with synthetic.in_use():
        return dpbench.sweep(
            implementations=["dp", "ddp"],
            batch_sizes=8,
            group_sizes=[1, 2],
            steps=4,
            repetitions=2,
            oversubscribe=True,
            results_dir=folder,
            name="mine",
        )


def test_frames_have_a_row_for_each_observation(measured: Results) -> None:
    """5 configurations, 2 repetitions; dp has one process, ddp a rank a replica: 1 + 1 + 1 + 2 + 1
    ranks a repetition. 4 steps a rank and window; two replicas have a second one without
    synchronization, on 2 + 1 ranks."""
    assert len(measured.rows) == 5
    assert len(measured.trials) == 10
    assert len(measured.ranks) == 12
    windows = measured.steps.groupby("window", observed=True).size()
    assert windows.to_dict() == {"timed": 4 * 12, "unsynced": 4 * 6}
    assert len(measured.collectives) == 0
    assert {"collective", "nbytes", "bus_bytes_per_second"} <= {*measured.collectives.columns}


def test_a_table_is_that_of_the_report(
    measured: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(measured.folder), "--format", "csv"]) == 0
    assert measured.table(format="csv") == capsys.readouterr().out
    assert measured.table(columns=["backend", "batch_size"]).splitlines()[0] == "Backend  Batch"
    with pytest.raises(UsageError, match="column"):
        measured.table(columns="speed")


def test_a_chart_is_a_figure(measured: Results) -> None:
    assert isinstance(measured.plot("speedup"), Figure)
    with pytest.raises(UsageError, match="did you mean 'throughput'"):
        measured.plot("throughputs")
    with pytest.raises(UsageError, match="nothing to draw as 'bandwidth' in "):
        measured.plot("bandwidth")


def test_collectives_alone_are_results_too() -> None:
    record = collective_record(collective_spec(sizes_bytes=(4, 1024)))
    cut = stored_collectives([record], warnings=("one line cut",))
    found = Results(cut, Path("results/comm"))
    assert (found.spec, len(found.rows), len(found.collectives)) == (None, 0, 2)
    assert found.warnings == ("one line cut",)
    assert repr(found) == "<Results 'results/comm': 1 collective>"
    with pytest.raises(UsageError, match=r"table: these results are collectives; expected \.coll"):
        found.table()


def test_a_sweep_without_trials_is_read(tmp_path: Path) -> None:
    spec = sweep_spec()
    with folders.ResultsFolder.create(tmp_path / "new", command(), spec):
        found = dpbench.load(str(tmp_path / "new"))
    assert (found.spec, len(found.collectives)) == (spec, 0)
    assert found.summary == "No fastest configuration: no trial was recorded."
