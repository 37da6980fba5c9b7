"""Help is short and plain, and errors name what was expected."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dpbench.cli.app import commands, run

Capture = pytest.CaptureFixture[str]
COMMANDS: dict[str, Any] = commands().commands
LONGEST = 80
MAX_LINES = {"sweep": 110, "train": 100, "check": 80}
"""Lines of the whole help of long commands on a terminal of 80 columns."""
MAX_LINES_OF_SHORT_HELP = 50


def printed(capsys: Capture, *words: str) -> str:
    assert run([*words]) == 0
    return capsys.readouterr().out


def test_commands_and_options_have_a_plain_line_each(capsys: Capture) -> None:
    short, whole = printed(capsys, "--help"), printed(capsys, "--help-all")
    assert re.findall(r"^  ([a-z]+)  ", whole, re.MULTILINE) == [*COMMANDS]
    assert re.findall(r"^  ([a-z]+)  ", short, re.MULTILINE) == [*COMMANDS][:4]
    assert f"More commands: {', '.join([*COMMANDS][4:])}. " in " ".join(short.split())
    for name, command in COMMANDS.items():
        line = command.help.split("\n\n")[0]
        assert re.fullmatch(rf".{{1,{LONGEST - 1}}}\.", line), name
        for option in (one for one in command.params if not getattr(one, "hidden", False)):
            assert 0 < len(option.help) <= LONGEST, f"{name} {option.name}"
            assert "docs/" not in option.help  # who installed dpbench has no such file


@pytest.mark.parametrize("name", MAX_LINES)
def test_help_is_short_names_every_option_and_begins_with_those_that_everybody_types(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = (printed(capsys, name, word).splitlines() for word in ("-h", "--help-all"))
    assert len(short) <= MAX_LINES_OF_SHORT_HELP
    assert len(whole) <= MAX_LINES[name]
    assert max(map(len, [*short, *whole])) <= 80
    first = short[short.index("Options:") + 1 :]
    first = first[: first.index("")]
    names = [line.split()[0] for line in first if line.startswith("  -")]
    assert names[:2] == ["--arch", "--gpus"]
    assert {"--name", "--json"} < {*names}
    options = [p for p in COMMANDS[name].params if p.param_type_name == "option" and not p.hidden]
    assert {p.opts[0] for p in options} <= {*re.findall(r"--[a-z-]+", " ".join(short))}
    assert short[-2:] == ["", f"dpbench {name} --help-all describes all options."]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "launch"])
def test_every_command_has_help(capsys: Capture, name: str) -> None:
    text = printed(capsys, name, "--help")
    assert (printed(capsys, name, "--help-all") == text) == (name not in MAX_LINES)
    assert "Usage:" in text
    assert "<bool>" not in text  # a flag takes no value
    assert "[default: (" not in text
    assert run([name, "--nonsense"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dpbench: No such option: --nonsense")
    assert error.endswith(f"See dpbench {name} --help.\n")


def test_nothing_typed_is_the_help_and_the_version_is_one_line(capsys: Capture) -> None:
    assert "sweep" in printed(capsys)
    assert len(printed(capsys, "list").splitlines()) < 20
    assert re.fullmatch(r"dpbench \d+\.\d+\.\d+\n", printed(capsys, "--version"))
