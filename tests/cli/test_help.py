"""Help is short and plain, and errors name what was expected."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from dpbench.cli.app import app, run

Capture = pytest.CaptureFixture[str]
GROUP: Any = typer.main.get_command(app)
COMMANDS = GROUP.commands
LONGEST = 80
GENERATED = re.compile(r" (Names|Any of|One of): [\w, -]+\.$")
"""The names that an option takes, which come from its declaration."""


def printed(capsys: Capture, *words: str) -> str:
    assert run([*words]) == 0
    return capsys.readouterr().out


def test_commands_are_listed_with_a_line_each(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = printed(capsys, "--help")
    assert all(re.search(rf"\b{name}  ", text) for name in COMMANDS)
    for name, command in COMMANDS.items():
        line = command.help.split("\n\n")[0]
        assert len(line) <= LONGEST, name
        assert "\n" not in line
        assert line.endswith(".")


def test_the_help_of_an_option_is_one_plain_line() -> None:
    for name, command in COMMANDS.items():
        for option in command.params:
            if not getattr(option, "hidden", False):
                text = GENERATED.sub("", option.help)
                assert 0 < len(text) <= LONGEST, f"{name} {option.name}"
                assert "docs/" not in text  # who installed dpbench has no such file


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "launch"])
def test_every_command_has_help(capsys: Capture, name: str) -> None:
    text = printed(capsys, name, "--help")
    assert "Usage:" in text
    assert "<bool>" not in text  # a flag takes no value
    assert "[default: (" not in text
    assert run([name, "--nonsense"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dpbench: No such option: --nonsense")
    assert error.endswith(f"See dpbench {name} --help.\n")


def test_nothing_typed_is_the_help_and_the_version_is_one_line(capsys: Capture) -> None:
    assert "sweep" in printed(capsys)
    assert re.fullmatch(r"dpbench \d+\.\d+\.\d+\n", printed(capsys, "--version"))
