"""`make gpu`: runs the parts of tools/gpu.yaml on this machine's GPUs, and checks what each leaves.

`make gpu REHEARSE=1` runs them on the CPU, with small models. A part that was begun goes on where
it stopped, unless it is rehearsed.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import yaml

import dpbench
from dpbench import folders
from dpbench.cli.app import run as run_command
from dpbench.records.trial import Status, TrialRecord
from tests.cli.command import ROOT, environment

REHEARSED = bool(os.environ.get("DPBENCH_REHEARSE"))
FOLDER = ROOT / "results" / ("rehearsal" if REHEARSED else "gpu")
PARTS: list[dict[str, Any]] = yaml.safe_load((ROOT / "tools" / "gpu.yaml").read_text())
ON_A_CPU = {
    "sweep": "--arch mlp --backends gloo --gpus 2 --oversubscribe --warmup 1 --steps 2"
    " --repetitions 2",
    "comm": "--samples 3 --repetitions 1",
}
"""The words that a rehearsal adds to each command."""
COLUMNS = (
    *("implementation", "backend", "group_size", "batch_size", "label", "images_per_second"),
    *("exposed_communication_seconds", "peak_memory_bytes", "status"),
)
"""Columns of the file of results; with the ends of their intervals."""


def words_of(part: dict[str, Any], *, rehearsed: bool) -> list[str]:
    """The words after `dpbench`, without those that name the folder."""
    gpus = 2 if rehearsed else torch.cuda.device_count()
    words = shlex.split(part["run"].format(gpus=gpus))
    if rehearsed:
        words += shlex.split(f"{ON_A_CPU.get(words[0], '')} {part.get('rehearse', '')}")
    return words


def marked(part: dict[str, Any]) -> Any:
    needed = 0 if REHEARSED else part.get("gpus", 1)
    return pytest.param(part, id=part["name"], marks=pytest.mark.gpu(needed))


def run(part: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run the part, or what is left of it."""
    command, *words = words_of(part, rehearsed=REHEARSED)
    folder = FOLDER / part["name"]
    if command == "train":
        words = ["--runs-dir", str(FOLDER), *words]
    if command in ("sweep", "comm", "explain"):
        words = ["--results-dir", str(FOLDER), "--name", part["name"], *words]
        if command != "explain":
            words += ["--no-charts"]
        if folder.exists() and command == "sweep" and not REHEARSED:
            words += ["--resume"]
        elif folder.exists():
            shutil.rmtree(folder)
    return subprocess.run(
        [sys.executable, "-m", "dpbench", command, *words],
        cwd=ROOT,
        env=environment() | part.get("env", {}),
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )


@pytest.fixture(scope="module", autouse=True)
def _results() -> Iterator[None]:
    """Write the file of results in the end, with what there is by then."""
    yield
    found = [speed(part) for part in PARTS if part["name"].startswith("speed-")]
    if any(found):
        text = json.dumps([one for one in found if one], indent=1)
        (FOLDER / "gpu.json").write_text(f"{text}\n")


def speed(part: dict[str, Any]) -> dict[str, Any] | None:
    """The rows of a part, and ddp against torch-ddp as `dpbench compare` has it; None if the part
    has not run."""
    folder = FOLDER / part["name"]
    if not folder.exists():
        return None
    sides = [f"{folder}:implementation={name}" for name in ("torch-ddp", "ddp")]
    compared = subprocess.run(
        [sys.executable, "-m", "dpbench", "compare", *sides, "--json"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    stored = folders.load_sweep(folder)
    gpus = [gpu.name for one in stored.environments.values() for gpu in one.accelerators]
    rows = dpbench.load(folder).rows
    shown = [column for column in rows if str(column).startswith(COLUMNS)]
    return {
        "model": part["name"].removeprefix("speed-"),
        "gpus": gpus,
        "rows": json.loads(rows[shown].to_json(orient="records")),
        "compared": json.loads(compared.stdout)["rows"] if compared.returncode == 0 else [],
    }


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize("part", [marked(part) for part in PARTS])
def test_a_part_runs_and_leaves_what_it_has_to(part: dict[str, Any]) -> None:
    done = run(part)
    wanted = Status(part.get("status", "completed"))
    if not part["run"].startswith("explain"):  # it may be too noisy to explain
        assert (done.returncode == 0) is (wanted is Status.COMPLETED), done.stdout + done.stderr
    print(done.stdout)  # `make gpu` shows it
    if part["run"].startswith(("sweep", "explain")):
        stored = folders.load_sweep(FOLDER / part["name"])
        assert stored.records
        for record in stored.records:
            assert record.status is wanted, f"{record.configuration}: {record.reason}"
            assert_recorded(record)
        if not REHEARSED:
            used = {rank.device for record in stored.records for rank in record.ranks}
            expected = set(part["devices"].split(",")) if "devices" in part else used
            assert used == expected
            assert all(device.startswith("cuda") for device in used)
            for one in stored.environments.values():
                assert all(gpu.uuid for gpu in one.accelerators)


def assert_recorded(record: TrialRecord) -> None:
    """What each rank of a completed trial has to have, on whichever device it ran."""
    for rank in record.ranks:
        if rank.device.startswith("cuda"):
            assert rank.peaks.device_bytes
        if record.configuration.workload.script:
            continue
        if record.repetition == 0 and record.configuration.is_instrumented:
            assert rank.phases
        if record.configuration.has_unsynced_window:
            assert "unsynced" in rank.windows


@pytest.mark.parametrize("part", [pytest.param(part, id=part["name"]) for part in PARTS])
@pytest.mark.usefixtures("here", "synthetic")
def test_the_command_of_a_part_is_accepted(part: dict[str, Any]) -> None:
    words = words_of(part, rehearsed=True)
    if words[0] == "sweep":
        assert run_command([*words, "--oversubscribe", "--dry-run"]) == 0
