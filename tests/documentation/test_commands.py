"""Commands that the documentation shows: all are parsed, and those that need no ranks run."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click
import pytest
import typer

from dpbench.cli.app import app, run
from tests.documentation import DOCUMENTS, ROOT
from tests.documentation.commands import Shown, prepare, shown, stage
from tests.documentation.outputs import without_charts
from tests.launch import synthetic

TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in DOCUMENTS}
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_every_command_that_is_shown_can_be_parsed() -> None:
    assert sum(len(shown(text)) for text in TEXTS.values()) > 50
    problems = []
    for name, text in TEXTS.items():
        for command in shown(text):
            if command.name == "launch":
                continue  # it takes torchrun's options, and a script with options of its own
            try:
                COMMANDS[command.name].make_context(command.name, [*command.words[1:]])
            except click.exceptions.Exit:
                pass
            except (KeyError, click.ClickException) as error:
                problems.append(f"{name}:{command.line} {' '.join(command.words)}: {error}")
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_every_command_that_needs_no_ranks_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage(tmp_path, TEXTS[name])
    for variable, value in {**synthetic.VARIABLES, "COLUMNS": "100", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(variable, value)
    for command in shown(TEXTS[name]):
        if command.runs_in_tests:
            prepare(tmp_path, command)
            assert _status(command, tmp_path) == 0, (command, capsys.readouterr().err[-2000:])


def _status(command: Shown, folder: Path) -> int:
    words = [*command.words, *without_charts(command.name)]
    if command.name == "sweep":
        words += ["--oversubscribe"] if "--gpus" in words else []  # whatever cores there are
        words += ["--repetitions", "2"] if "--repetitions" not in words else []
    with contextlib.chdir(folder):
        return run(words)
