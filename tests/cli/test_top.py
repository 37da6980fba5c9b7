"""`dpbench top` beside a sweep that runs, in this very process, and after its end."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dpbench import store
from dpbench.cli.app import run
from dpbench.codec import encode
from dpbench.launch.launcher import TrialOutcome
from dpbench.launch.synthetic import SyntheticLauncher
from dpbench.report.progress import terminal
from dpbench.run.watching import WatchedSweep, is_running
from dpbench.specs import TrialSpec
from dpbench.store import live
from dpbench.store.live import ForeignPage, Stage, StepCounter
from tests.cli.synthetic import dpbench

pytestmark = pytest.mark.usefixtures("signals")

SWEEP = ("--implementations", "ddp", "--batch-sizes", "8", "--repetitions", "2", "--no-charts")
"""Six trials: single ×1, ddp ×1, ddp ×2, and back."""
Look = Callable[[int], None]
Install = Callable[[Look], None]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "watched"


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Has something called at the start of every trial, with how many were started before."""

    def install(look: Look) -> None:
        started, original = [0], SyntheticLauncher.run

        def watched(self: SyntheticLauncher, trial: TrialSpec, limit: float) -> TrialOutcome:
            look(started[0])
            started[0] += 1
            return original(self, trial, limit)

        monkeypatch.setattr(SyntheticLauncher, "run", watched)

    return install


def sweep(folder: Path, *more: object) -> int:
    place = ("--results-dir", folder.parent, "--name", folder.name)
    return dpbench("sweep", *SWEEP, "--gpus", 2, "--oversubscribe", *place, "--quiet", *more)


def steps_of(folder: Path) -> StepCounter:
    """What rank 0 of the sweep in `folder` would count with."""
    running = store.load_running(folder)
    assert running is not None
    return StepCounter(running.address)


def test_a_running_sweep_is_seen_with_its_trial_and_steps(
    folder: Path, during: Install, capsys: Captured
) -> None:
    seen: list[dict[str, Any]] = []

    def look(started: int) -> None:
        if started == 1:
            counter = steps_of(folder)
            counter.enter(Stage.TIMED, 50)
            counter.total[0] = 20
            capsys.readouterr()
            assert run(["top", str(folder), "--json"]) == 0
            seen.append(json.loads(capsys.readouterr().out))

    during(look)
    assert sweep(folder) == 0
    [data] = seen
    assert (data["state"], data["done"], data["planned"]) == ("running", 1, 6)
    assert data["seconds_left"] > 0
    assert data["current"]["configuration"] == "ddp/gloo ×1, batch 8"
    assert (data["current"]["steps_done"], data["current"]["steps"]) == (20, 50)
    rows = [(row["configuration"], row["state"], row["done"]) for row in data["configurations"]]
    assert rows == [
        ("single ×1, batch 8", "queued", 1),
        ("ddp/gloo ×1, batch 8", "running", 0),
        ("ddp/gloo ×2, batch 8", "queued", 0),
    ]


def test_without_a_terminal_it_is_printed_once(
    folder: Path, during: Install, capsys: Captured
) -> None:
    def look(started: int) -> None:
        if started == 4:
            assert run(["top", str(folder)]) == 0

    during(look)
    assert sweep(folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("queued   single ×1, batch 8     1/2")
    assert lines[2].startswith("running  ddp/gloo ×1, batch 8   1/2")
    assert lines[3].startswith("done     ddp/gloo ×2, batch 8   2/2")
    assert f"running: 4 of 6 trials are stored in {folder}" in lines


def test_only_what_is_new_is_read(folder: Path, during: Install) -> None:
    watched: list[WatchedSweep] = []
    done: list[int] = []

    def look(started: int) -> None:
        if not watched:
            watched.append(WatchedSweep(folder))
        watched[0].look()
        done.append(watched[0].state.done)

    during(look)
    sweep(folder)
    assert done == [0, 1, 2, 3, 4, 5]
    [seen] = watched
    seen.look()
    assert (seen.ending, seen.state.done) == ("finished", 6)
    assert seen._reader._lines_read == 6


def test_a_finished_sweep_says_so(folder: Path, capsys: Captured) -> None:
    sweep(folder)
    assert not (folder / store.LIVE_FILE).exists()
    capsys.readouterr()
    assert run(["top", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"finished: 6 of 6 trials are stored in {folder}; dpbench report {folder}" in out


def test_an_interrupted_sweep_says_how_to_finish_it(
    folder: Path, during: Install, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(started: int) -> None:
        if started == 2:
            raise KeyboardInterrupt

    during(look)
    monkeypatch.setattr("sys.argv", ["dpbench", "sweep", "--name", "watched"])
    assert sweep(folder) == 130
    assert not (folder / store.LIVE_FILE).exists()
    capsys.readouterr()
    assert run(["top", str(folder)]) == 1
    expected = (
        f"does not run: 2 of 6 trials are stored in {folder}; "
        "to finish: dpbench sweep --name watched --resume"
    )
    assert expected in capsys.readouterr().out


def test_a_killed_sweep_is_told_from_one_that_runs(
    folder: Path, during: Install, capsys: Captured
) -> None:
    """Its live.json stays behind, and the memory it points to is gone."""
    left = folder.parent / "live.json"

    def look(started: int) -> None:
        if started == 3:
            shutil.copy(folder / store.LIVE_FILE, left)
            shutil.copy(folder / store.TRIALS_FILE, folder.parent / store.TRIALS_FILE)

    during(look)
    sweep(folder)
    for name in (store.LIVE_FILE, store.TRIALS_FILE):
        shutil.copy(folder.parent / name, folder / name)
    capsys.readouterr()
    assert run(["top", str(folder), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["state"], data["done"], data["planned"], data["current"]) == ("killed", 3, 6, None)
    assert not is_running(folder)


def test_a_sweep_that_is_resumed_shows_all_that_is_stored(
    folder: Path, during: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(started: int) -> None:
        if started == 4:
            raise KeyboardInterrupt

    during(interrupt)
    assert sweep(folder) == 130
    monkeypatch.undo()
    seen: list[tuple[int, int, str]] = []

    def look(started: int) -> None:
        watched = WatchedSweep(folder)
        watched.look()
        state = watched.state
        assert state.current is not None
        seen.append((state.done, state.planned_in_all, state.current.spec.label))

    during(look)
    assert sweep(folder, "--resume") == 0
    assert seen == [(4, 6, "ddp/gloo ×1, batch 8"), (5, 6, "single ×1, batch 8")]


def test_a_plan_that_grows_is_followed_pass_by_pass(folder: Path, during: Install) -> None:
    seen: set[tuple[int, int]] = set()
    watched: list[WatchedSweep] = []

    def look(started: int) -> None:
        if not watched:
            watched.append(WatchedSweep(folder))
        watched[0].look()
        current = watched[0].state.current
        assert current is not None
        seen.add((current.spec.repetition, watched[0].state.rows[current.place].planned))

    during(look)
    grow = ("--repetitions", 2, "--precision", "0.01%", "--steps", 3, "--budget", "0.4")
    assert sweep(folder, *grow) == 0
    assert {(0, 2), (1, 2), (2, 3), (3, 4)} <= seen


def test_a_plan_that_grew_is_finished_only_as_precise_as_was_asked_for(
    folder: Path, capsys: Captured
) -> None:
    """No trial is missing, but nobody knows whether it ended by itself."""
    grow = ("--repetitions", 2, "--precision", "0.01%", "--steps", 3, "--budget", "0.0001")
    assert sweep(folder, *grow) == 0
    capsys.readouterr()
    assert run(["top", str(folder)]) == 1
    said = capsys.readouterr().out
    assert f"does not run: 6 trials are stored in {folder}, 3 configurations are not" in said
    assert "known to ± 0.01 % yet" in said
    spec = folder / store.SWEEP_FILE
    spec.write_text(spec.read_text().replace('"precision": 0.0001', '"precision": 0.9'))
    assert run(["top", str(folder)]) == 0
    assert f"finished: 6 trials are stored in {folder}; dpbench" in capsys.readouterr().out


def test_a_sweep_that_cannot_be_seen_into_still_runs(
    folder: Path, during: Install, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise ForeignPage

    def look(started: int) -> None:
        if started != 1:
            return
        with monkeypatch.context() as patched:
            patched.setattr(live, "read", refuse)
            assert run(["top", str(folder)]) == 0
        with monkeypatch.context() as patched:
            patched.setattr(platform, "node", lambda: "elsewhere")
            assert run(["top", str(folder)]) == 0

    during(look)
    sweep(folder)
    out = capsys.readouterr().out
    assert out.count(f"running: 1 of 6 trials are stored in {folder}\n") == 2
    assert "its memory cannot be read" in out
    assert "neither its steps nor whether it was killed is seen from here" in out


def test_on_a_terminal_it_is_watched_until_it_ends(
    folder: Path, during: Install, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "can_draw", lambda _: True)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            (folder / store.LIVE_FILE).unlink()  # as at its end

    def look(started: int) -> None:
        if started == 0:
            with monkeypatch.context() as patched:
                patched.setattr("time.sleep", sleep)
                assert run(["top", str(folder)]) == 1

    during(look)
    sweep(folder)
    assert slept == [0.5] * 3  # twice a second
    assert "does not run: 0 of 6 trials are stored" in capsys.readouterr().out


def test_ctrl_c_leaves_the_sweep_alone(
    folder: Path, during: Install, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "can_draw", lambda _: True)
    monkeypatch.setattr(os, "nice", lambda _: 0)

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    def look(started: int) -> None:
        if started == 0:
            with monkeypatch.context() as patched:
                patched.setattr("time.sleep", interrupted)
                assert run(["top", str(folder)]) == 0

    during(look)
    assert sweep(folder) == 0
    assert f"running: 0 of 6 trials are stored in {folder}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "is not a results folder"),
        ({"comm.json": "{}"}, "holds collectives only"),
        ({"sweep.json": "[]"}, "expected an object"),
    ],
)
def test_what_is_no_sweep_is_refused(
    folder: Path, capsys: Captured, files: dict[str, str], words: str
) -> None:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    assert run(["top", str(folder)]) == 2
    assert words in capsys.readouterr().err


def live_file(*, configurations: str = "[]", repetitions: str = "[]") -> str:
    return (
        '{"schema_version": 1, "host": "h", "address": null, "round": 1, '
        f'"configurations": {configurations}, "repetitions": {repetitions}}}'
    )


@pytest.mark.parametrize(
    "content",
    [
        "{",
        live_file(configurations="[99]", repetitions="[0]"),
        live_file(configurations='"x"', repetitions="[]"),
        live_file(configurations="[0, 1]", repetitions="[0]"),
        live_file(configurations="[0]", repetitions="[0]").replace("schema_version", "version"),
    ],
)
def test_a_damaged_live_file_takes_one_line(folder: Path, capsys: Captured, content: str) -> None:
    sweep(folder)
    (folder / store.LIVE_FILE).write_text(content)
    capsys.readouterr()
    assert run(["top", str(folder)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert run(["report", str(folder), "--no-charts"]) == 0  # the records are good


def test_a_trial_that_the_live_file_does_not_name_takes_one_line(
    folder: Path, during: Install, capsys: Captured
) -> None:
    def look(started: int) -> None:
        if started == 1:
            running = store.load_running(folder)
            assert running is not None
            content = encode(replace(running, configurations=(0,), repetitions=(0,)))
            whole = (folder / store.LIVE_FILE).read_text()
            (folder / store.LIVE_FILE).write_text(json.dumps({"schema_version": 1, **content}))
            assert run(["top", str(folder)]) == 2
            (folder / store.LIVE_FILE).write_text(whole)

    during(look)
    assert sweep(folder) == 0
    assert "names 1 trials, but number 2 runs" in capsys.readouterr().err
