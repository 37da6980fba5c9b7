"""The README says what the code does: its commands parse, its paths exist, its terms are ours."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from dpbench.cli.app import app
from dpbench.report.columns import DEFAULT_COLUMNS
from dpbench.specs import IMPLEMENTATIONS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^dpbench (?P<words>\w[^#\n]*?)\s*(?:#.*)?$", README, re.MULTILINE)
COMMAND_NAMES = (
    "sweep",
    "report",
    "explain",
    "compare",
    "check",
    "calibrate",
    "comm",
    "project",
    "buckets",
    "iso",
    "what-if",
    "fit",
    "published",
    "list",
    "doctor",
)
GROUP = typer.main.get_command(app)


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_of_the_readme_parses(words: str) -> None:
    name, *arguments = shlex.split(words)
    command = GROUP.commands[name]  # type: ignore[attr-defined]
    command.make_context(name, arguments)


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_every_command_is_shown_and_has_help(name: str) -> None:
    assert re.search(rf"^dpbench {name}\b", README, re.MULTILINE)
    assert GROUP.commands[name].help  # type: ignore[attr-defined]


def test_there_are_no_other_commands() -> None:
    assert set(GROUP.commands) == set(COMMAND_NAMES)  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:\w+/)+[\w.]*)`", README))))
def test_paths_in_the_readme_exist(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_first_screen_has_the_two_commands() -> None:
    first_screen = "\n".join(README.splitlines()[:15])
    assert "make sweep" in first_screen
    assert "make test" in first_screen


def test_every_default_column_with_a_metric_is_defined() -> None:
    names = ("implementation", "backend", "group_size", "batch_size", "status")
    metrics = [column for column in DEFAULT_COLUMNS if column.key not in names]
    for column in metrics:
        if not column.only_if_any:
            header = column.header.replace("{Item}", "Images")
            assert f"| {header} |" in README, header


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_every_implementation_is_described(name: str) -> None:
    assert f"`{name}`" in README


@pytest.mark.parametrize("target", ["sweep", "test", "check", "bench", "gate", "faults"])
def test_the_targets_of_make_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_continuous_integration_runs_the_readmes_test_command() -> None:
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text()
