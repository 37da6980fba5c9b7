"""Help is short, plain and the same for every command; errors name what to type instead."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from dpbench.cli.app import app, run
from dpbench.cli.help import MOST_OPTIONS

Capture = pytest.CaptureFixture[str]
GROUP: Any = typer.main.get_command(app)
COMMANDS = GROUP.commands
LONGEST = 80
PANELS = {
    "Measure": ["sweep", "train", "comm", "launch"],
    "Understand": ["report", "explain", "plot"],
    "Compare and gate": ["compare", "check"],
    "Predict": ["project", "fit", "iso", "what-if"],
    "Set up": ["init", "list", "doctor", "export"],
}
FRAGMENT = re.compile(r"(Of|Its|As of|From|Whoever|What|Instead:|The same) ")
GENERATED = re.compile(r" (Any|One) of: [\w, -]+\.$")
"""The names that an option takes, which come from its declaration."""


def printed(capsys: Capture, *words: str) -> str:
    assert run([*words]) == 0
    return capsys.readouterr().out


def options() -> list[Any]:
    return [
        pytest.param(option, id=f"{name} {option.name}")
        for name, command in COMMANDS.items()
        for option in command.params
        if not getattr(option, "hidden", False)
    ]


def test_commands_are_listed_in_groups_a_line_each(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    text = printed(capsys, "--help")
    places = [text.index(f"\n{panel}:\n") for panel in PANELS]
    assert places == sorted(places)
    for panel, names in PANELS.items():
        block = text.split(f"\n{panel}:\n")[1].split("\n\n")[0]
        assert [line.split()[0] for line in block.splitlines()] == names


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_said_in_one_line_of_plain_words(name: str) -> None:
    line = COMMANDS[name].help.split("\n\n")[0]
    assert len(line) <= LONGEST
    assert "\n" not in line
    assert line.endswith(".")
    assert not FRAGMENT.match(line)


@pytest.mark.parametrize("option", options())
def test_the_help_of_an_option_is_one_plain_line(option: Any) -> None:
    text = GENERATED.sub("", option.help)
    assert 0 < len(text) <= LONGEST
    assert not FRAGMENT.match(text)
    assert "docs/" not in text  # who installed dpbench has no such file


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "launch"])
@pytest.mark.parametrize("width", [60, 100])
def test_help_fits_the_terminal_and_shows_no_type(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = printed(capsys, name, "--help")
    assert "<" not in text
    examples = [line for line in text.splitlines() if line.startswith("  dpbench ")]
    assert all(len(line) <= width for line in text.splitlines() if line not in examples)


@pytest.mark.parametrize("name", ["sweep", "train", "check"])
def test_a_command_with_many_options_shows_the_common_ones_first(
    capsys: Capture, name: str
) -> None:
    short, everything = printed(capsys, name, "--help"), printed(capsys, name, "--help-all")
    shown = [option for option in COMMANDS[name].params if not option.hidden]
    assert len(shown) > MOST_OPTIONS
    assert re.search(rf"^All {len(shown)} options: dpbench {name} --help-all$", short, re.MULTILINE)
    of_options = re.compile(r"^  (?:-\w, )?(--[\w-]+)", re.MULTILINE)
    common = set(of_options.findall(short))
    assert {"--arch", "--gpus", "--help-all"} <= common
    assert len(common) <= MOST_OPTIONS
    listed = set(of_options.findall(everything))
    assert listed == {o.opts[0] for o in shown if o.opts[0].startswith("--")} | {
        "--help",
        "--help-all",
    }
    assert common <= listed


def test_what_is_hidden_is_in_no_help(capsys: Capture) -> None:
    assert "synthetic" not in printed(capsys, "sweep", "--help-all")
    assert "--local-rank" not in printed(capsys, "train", "--help-all")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("run", "sweep"),
        ("benchmark", "sweep"),
        ("bench", "sweep"),
        ("diff", "compare"),
    ],
)
def test_a_command_of_other_programs_is_answered_with_ours(
    capsys: Capture, typed: str, meant: str
) -> None:
    assert run([typed, "--gpus", "2"]) == 2
    said = f"dpbench: No such command '{typed}'. Did you mean '{meant}'? See dpbench --help.\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("sweep --model mlp", "--arch"),
        ("sweep --reps 3", "--repetitions"),
        ("sweep --num-gpus 2", "--gpus"),
        ("sweep --output out", "--results-dir"),
        ("check --reps 3", "--repetitions"),
        ("train --model gpt", "--arch"),
        ("train --batch-sizes 8", "--batch-size"),
    ],
)
def test_an_option_of_other_programs_is_answered_with_ours(
    capsys: Capture, typed: str, meant: str
) -> None:
    command, option, _ = words = typed.split()
    assert run(words) == 2
    said = capsys.readouterr().err
    assert said == (
        f"dpbench: No such option: {option}. Did you mean {meant}? See dpbench {command} --help.\n"
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_called_like_that_of_another_program(name: str) -> None:
    settings = getattr(COMMANDS[name], "settings", {})
    foreign = [word for setting in settings.values() for word in setting.elsewhere.split()]
    own = {word for option in COMMANDS[name].params for word in option.opts}
    assert not own & set(foreign)
    assert len(foreign) == len(set(foreign))


def test_values_with_blanks_between_are_answered_with_commas(capsys: Capture) -> None:
    assert run(["sweep", "--batch-size", "32", "64", "--gpus", "2"]) == 2
    assert capsys.readouterr().err == (
        "dpbench: --batch-sizes 32 64: several values are one word with commas, as in "
        "--batch-sizes 32,64. See dpbench sweep --help.\n"
    )
