"""dpbench compare as people call it: sides, selections, refusals, and what it prints where."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.analysis.comparisons.matching import NotComparable
from dpbench.cli.compare import compare
from dpbench.errors import StoreError, UnknownName, UsageError
from dpbench.records.environment import Environment, capture
from dpbench.run.results import split_selection
from dpbench.store import SweepStore
from tests.analysis.builders import runs, trial
from tests.builders import sweep_spec
from tests.cli.command import invoker

SPEEDS = (100.0, 101.0, 99.0, 100.5, 99.5)
HERE = capture()

invoke = invoker(compare)


Sweeps = Callable[..., Path]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweeps:
    """Writes a sweep of ddp on gloo and shm, the latter a tenth faster."""

    def write(
        name: str, factor: float = 1.0, environment: Environment = HERE, learning_rate: float = 0.01
    ) -> Path:
        workload = replace(trial().workload, learning_rate=learning_rate)
        with SweepStore.create(tmp_path / name, sweep_spec(), ["dpbench", "sweep"]) as store:
            store.add_environment(environment)
            for backend, gain in (("gloo", 1.0), ("shm", 1.1)):
                for record in runs(
                    trial(backend=backend, workload=workload),
                    [speed * factor * gain for speed in SPEEDS],
                    environment_id=environment.environment_id,
                ):
                    store.append(record)
        return tmp_path / name

    return write


def test_two_sweeps(sweep: Sweeps) -> None:
    result = invoke(sweep("before"), sweep("after", 1.2))
    assert result.exit_code == 0
    assert "Of 2 configurations, B is faster in 2, slower in none" in result.stdout
    assert result.stderr == ""


def test_two_selections_of_one_sweep_are_paired(sweep: Sweeps) -> None:
    folder = sweep("x")
    result = invoke(f"{folder}:backend=gloo", f"{folder}:backend=shm")
    assert "ddp ×1, batch 32" in result.stdout
    assert "t within each repetition" in result.stdout
    assert "B is faster in 1" in result.stdout


def test_a_folder_may_have_a_colon_in_its_name(sweep: Sweeps) -> None:
    folder = sweep("a:b=c")
    assert invoke(folder, sweep("plain")).exit_code == 0
    assert invoke(f"{folder}:backend=gloo", f"{folder}:backend=shm").exit_code == 0


def test_a_value_may_have_a_colon_in_it(sweep: Sweeps) -> None:
    with pytest.raises(UsageError, match="no trial has architecture 'planted:Architecture'"):
        invoke(sweep("a"), f"{sweep('b')}:architecture=planted:Architecture")


def test_a_selection_of_a_folder_that_does_not_exist(sweep: Sweeps, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="absent does not exist"):
        invoke(sweep("a"), f"{tmp_path / 'absent'}:backend=gloo")
    with pytest.raises(StoreError, match="ab:sent does not exist"):
        invoke(tmp_path / "a", tmp_path / "ab:sent")


def test_json_is_one_object_and_nothing_else(sweep: Sweeps) -> None:
    result = invoke(sweep("a"), sweep("b"), "--json", "--metric", "images_per_second,final_loss")
    rows = json.loads(result.stdout)["rows"]
    assert [row["metric"] for row in rows] == 2 * ["images_per_second"] + 2 * ["final_loss"]
    assert {row["outcome"] for row in rows} == {"same"}


def test_several_metrics_are_several_tables(sweep: Sweeps) -> None:
    result = invoke(sweep("a"), sweep("b"), "--metric", "step_seconds_p95,peak_memory_bytes")
    assert result.stdout.count("A (baseline)") == 2


def test_what_counts_as_the_same_can_be_set(sweep: Sweeps) -> None:
    sides = sweep("a"), sweep("b", 1.01)
    assert "same within 3 % in 2" in invoke(*sides).stdout
    assert "same within 0.5 % in none" in invoke(*sides, "--within", "0.5%").stdout


def test_the_output_can_go_to_a_file(sweep: Sweeps, tmp_path: Path) -> None:
    path = tmp_path / "comparison.csv"
    result = invoke(sweep("a"), sweep("b"), "--format", "csv", "--output", path)
    assert result.stdout == ""
    assert len(path.read_text().splitlines()) == 3
    with pytest.raises(StoreError, match="cannot write"):
        invoke(tmp_path / "a", tmp_path / "b", "--output", tmp_path / "absent" / "file")


def test_another_machine_is_refused_unless_forced(sweep: Sweeps) -> None:
    sides = sweep("a"), sweep("b", environment=replace(HERE, cpu="Z80"))
    with pytest.raises(NotComparable, match=r"cpu: .* -> 'Z80'"):
        invoke(*sides)
    assert "-> 'Z80'" in invoke(*sides, "--force").stdout
    assert "-> 'Z80'" in invoke(*sides, "--force", "--format", "html").stderr


def test_another_workload_is_refused_unless_selected(sweep: Sweeps) -> None:
    a, b = sweep("a"), sweep("b", learning_rate=0.1)
    with pytest.raises(NotComparable, match=r"learning_rate: 0\.01 -> 0\.1") as error:
        invoke(a, b)
    assert str(error.value).endswith(f"select {a}:learning_rate=0.01 {b}:learning_rate=0.1")
    assert "slower" in invoke(f"{a}:learning_rate=0.01", f"{b}:learning_rate=0.1").stdout


def test_power_is_one_number_a_row(sweep: Sweeps) -> None:
    """What the runs of an inconclusive row would have detected, and nothing else about power."""
    (row, *_) = json.loads(invoke(sweep("a"), sweep("b"), "--json").stdout)["rows"]
    assert [key for key in row if "detect" in key or "power" in key or "needed" in key] == [
        "minimum_detectable_effect"
    ]


def test_a_metric_that_nobody_measured_cannot_be_compared(sweep: Sweeps) -> None:
    with pytest.raises(NotComparable, match="exposed_communication_seconds was measured on neith"):
        invoke(sweep("a"), sweep("b"), "--metric", "exposed_communication_seconds")


def test_a_cut_off_last_line_is_said_once(sweep: Sweeps) -> None:
    folder = sweep("a")
    with (folder / "trials.jsonl").open("a") as trials:
        trials.write('{"schema')
    result = invoke(f"{folder}:backend=gloo", f"{folder}:backend=shm")
    assert result.stderr.count("cut off") == 1


@pytest.mark.parametrize(
    ("selection", "error", "words"),
    [
        (":backends=gloo", UnknownName, "Did you mean 'backend'"),
        (":backend=nccl", UsageError, "no trial has backend 'nccl'; there is gloo, shm"),
        (":backend=gloo,shm", UsageError, "'shm' is not key=value"),
        (":backend=", UsageError, "'backend=' is not key=value"),
        (":backend=gloo,backend=shm", UsageError, "backend is given twice"),
        (":backend", UsageError, "'backend' is not key=value"),
        ("", UsageError, "trials in common"),
    ],
)
def test_bad_selections(sweep: Sweeps, selection: str, error: type[UsageError], words: str) -> None:
    folder = sweep("a")
    with pytest.raises(error, match=words):
        invoke(f"{folder}:backend=gloo", f"{folder}{selection}")


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (["--metric", "speed"], UsageError, "--metric: got 'speed'"),
        (["--within", "0.03"], UsageError, "--within: got '0.03'; expected a percentage"),
        (["--format", "jsn"], UnknownName, "Did you mean 'json'"),
        (["--json", "--format", "csv"], UsageError, "contradict"),
    ],
)
def test_bad_options(
    sweep: Sweeps, arguments: list[str], error: type[UsageError], words: str
) -> None:
    with pytest.raises(error, match=words):
        invoke(sweep("a"), sweep("b"), *arguments)


def test_an_absent_folder_and_a_published_table(sweep: Sweeps, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        invoke(sweep("a"), tmp_path / "absent")
    path = tmp_path / "table.csv"
    path.touch()
    with pytest.raises(UsageError, match="holds published numbers, single values without a spread"):
        invoke(path, tmp_path / "a")


def test_a_selection_names_an_architecture_with_its_options() -> None:
    folder, where = split_selection("results/x:architecture=gpt:layers=1,width=32,backend=shm")
    assert folder == Path("results/x")
    assert where == {"architecture": "gpt:layers=1,width=32", "backend": "shm"}
    with pytest.raises(UsageError, match="'shm' is not key=value"):
        split_selection("results/x:backend=gloo,shm")
