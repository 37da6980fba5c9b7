"""Command lines of real options and hostile values: a status and a line, never a traceback."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpbench.report.page import pictures
from dpbench.run.gate import thresholds
from dpbench.run.sweep import checks
from tests.fuzz import folders
from tests.fuzz.arguments import COMMANDS, LONG, WORKLOAD_OPTIONS, command_lines
from tests.fuzz.commands import STATUSES, assert_ends_well
from tests.launch import synthetic


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command_line")
    folders.make(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _soon_over() -> Iterator[None]:
    """Nothing is measured for long, no chart is drawn, and no folder stays importable."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "BUDGET", "0.05")
        patch.setattr(checks, "MOST_STEPS", 200)
        patch.setattr(thresholds, "DEFAULTS", {**thresholds.DEFAULTS, "budget": "0.05"})
        patch.setattr(pictures, "CHARTS", {})
        patch.setattr(sys, "path", [*sys.path])
        with synthetic.in_use():
            yield


def in_a_copy(prepared: Path, arguments: list[str]) -> None:
    """Runs it where it may write, and checks that it writes nowhere else."""
    outside = prepared.parent
    folder = outside / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(prepared, folder)
    before = sorted(outside.iterdir())
    assert_ends_well(arguments, folder)
    assert sorted(outside.iterdir()) == before


def test_every_command_is_fuzzed() -> None:
    assert set(COMMANDS) == set(STATUSES)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(arguments=st.sampled_from(sorted(COMMANDS)).flatmap(command_lines))
def test_no_command_line_ends_with_a_traceback(prepared: Path, arguments: list[str]) -> None:
    in_a_copy(prepared, arguments)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(arguments=command_lines("sweep", only=WORKLOAD_OPTIONS))
def test_no_workload_of_a_sweep_ends_with_a_traceback(prepared: Path, arguments: list[str]) -> None:
    small = ["--implementations=ddp,local-sgd", "--group-sizes=1,2", "--steps=4", "--repetitions=1"]
    in_a_copy(prepared, [*arguments, *small, "--no-charts"])


@pytest.mark.parametrize("name", LONG, ids=range(len(LONG)))
@pytest.mark.parametrize("command", ["report", "explain", "compare good", "check"])
def test_a_name_that_no_folder_can_have(prepared: Path, command: str, name: str) -> None:
    baseline = ["--baseline", "good"] if command == "check" else []
    in_a_copy(prepared, [*command.split(), name, *baseline])


@pytest.mark.parametrize("option", ["--gpus", "--group-sizes"])
def test_more_replicas_than_memory_has_names_for(prepared: Path, option: str) -> None:
    in_a_copy(
        prepared,
        ["sweep", "--dry-run", "--oversubscribe", option, "9" * 18],
    )


def test_a_name_of_two_lines_is_told_in_one(prepared: Path) -> None:
    ended = assert_ends_well(["report", "a\n\x1b[31mb"], prepared)
    assert ended.status == 2
    assert ended.err.startswith("dpbench: a\\n\\x1b[31mb does not exist")
