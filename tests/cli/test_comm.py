"""dpbench comm as people call it, on a cost model; the ranks are tested in tests/launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpbench.analysis.analyze import read_folder
from dpbench.cli.app import run
from dpbench.records.collectives import CollectiveRecord
from dpbench.records.trial import Status
from dpbench.specs.collective import CollectiveSpec
from tests.analysis.collective_records import failed_record
from tests.launch import synthetic

Captured = pytest.CaptureFixture[str]
SMALL = ("--sizes", "4B-4KiB", "--samples", "3", "--no-charts", "--gpus", "2")
IN_TURN = [*("gloo 0", "shm 0", "shm 1", "gloo 1"), *("gloo 2", "shm 2", "shm 3", "gloo 3")]

pytestmark = pytest.mark.usefixtures("signals", "synthetic")


def comm(folder: Path, *arguments: str) -> int:
    return run(["comm", *SMALL, "--results-dir", str(folder), "--name", "c", *arguments])


def ran(folder: Path) -> list[str]:
    records = read_folder(folder / "c").records
    specs = [one.spec for one in records if isinstance(one, CollectiveRecord)]
    return [f"{spec.backend} {spec.repetition}" for spec in specs]


def test_every_measurement_is_stored_told_and_shown(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert comm(tmp_path, "--backends", "gloo,shm") == 0
    assert ran(tmp_path) == IN_TURN
    shown = capsys.readouterr()
    assert "all_reduce  gloo         2 " in shown.out
    assert "[1/8] all_reduce on gloo ×2, repetition 1: 6 sizes (" in shown.err
    page = tmp_path / "c/report/index.html"
    assert shown.out.endswith(f"\nReport: {page}\n")
    assert run(["report", str(tmp_path / "c"), "--columns", "nbytes", "--output", str(page)]) == 2
    assert "--columns: the page of collectives has all columns" in capsys.readouterr().err
    assert page.exists()
    assert run(["report", str(tmp_path / "c"), "--implementations", "ddp"]) == 2
    there = "c: no such row; there are --backends gloo, shm; --group-sizes 2"
    assert capsys.readouterr().err == f"dpbench: {there}\n"


def test_a_failure_is_a_row_and_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    works = synthetic.run_collective

    def fails_on_shm(spec: CollectiveSpec, **more: object) -> CollectiveRecord:
        if spec.backend == "shm":
            return failed_record(spec, Status.FAILED, "rank 1 raised OSError: no room")
        return works(spec, **more)

    monkeypatch.setattr(synthetic, "run_collective", fails_on_shm)
    assert comm(tmp_path, "--backends", "gloo,shm") == 1
    assert "rank 1 raised OSError: no room" in capsys.readouterr().out


def test_ctrl_c_keeps_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    works = synthetic.run_collective

    def interrupted(spec: CollectiveSpec, **more: object) -> CollectiveRecord:
        if spec.repetition == 1:
            raise KeyboardInterrupt
        return works(spec, **more)

    monkeypatch.setattr(synthetic, "run_collective", interrupted)
    assert comm(tmp_path, "--backends", "gloo,shm") == 130
    said = capsys.readouterr().err
    assert f"interrupted: 2 of 8 measurements are stored in {tmp_path / 'c'}" in said
    assert ran(tmp_path) == IN_TURN[:2]
