"""The commands that the documentation shows: all are parsed, and those that need no ranks run.

A command stands on a line of a fenced block, or within a sentence with its arguments. A line with
an ellipsis and a command with a placeholder in capitals are no commands.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from dpbench.cli.app import commands, run
from dpbench.cli.init import TEMPLATE
from tests.launch import synthetic
from tools.docs import DOCUMENTS, ROOT
from tools.docs.blocks import GENERATED
from tools.docs.outputs import without_charts

TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in DOCUMENTS}
BLOCK = re.compile(r"^```\w*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
CONTINUED = re.compile(r"\\\n|\n\s+(?=--)")
COMMAND = re.compile(
    r"^[-$ ]*(?:[A-Z_]+=\S+ )*(?:run: |exec |python -m |srun [^']*?)?dpbench (?P<words>[a-z].*)"
)
IN_A_SENTENCE = re.compile(r"`dpbench ([a-z-]+ [^`]+)`")
PLACEHOLDER = re.compile(r"(?<![\w$-])[A-Z]+\b")
NAMED_FILE = re.compile(r"# (?P<name>[\w/]+\.\w+)\n")
"""The first line of a block that shows a file."""
RESULTS = re.compile(r"results/(?!examples|published)[\w-]+")
EXAMPLE = ROOT / "results" / "examples" / "two-cores"
READ_ONLY = ("report", "compare", "explain", "plot", "project", "list", "init")
NEEDS_MORE = re.compile(
    r"(?:^| )(?:-m |train\.py)|--nnodes|--example|\bmax\b|\btorchvision:|\bgpt2\.py:"
)
"""Words of a command that starts real processes, looks for other nodes, needs a library, or copies
what is staged already."""


def shown(text: str) -> Iterator[list[str]]:
    """The words behind `dpbench` of each command of a document."""
    text = GENERATED.sub(lambda part: part["head"], text)  # its commands run where it is made
    for block in BLOCK.finditer(text):
        for line in CONTINUED.sub(" ", block["body"]).splitlines():
            if "…" not in line and (command := COMMAND.match(line)):
                yield _words(command["words"])
    for words in IN_A_SENTENCE.findall(BLOCK.sub("", text)):
        if "…" not in words and not PLACEHOLDER.search(words):
            yield _words(words)


def _words(command: str) -> list[str]:
    """The words before a comment, a pipe or a redirection."""
    return shlex.split(re.split(r" [|>] ", command)[0], comments=True)


COMMANDS = [
    pytest.param(words, id=f"{name} {' '.join(words)}")
    for name, text in TEXTS.items()
    for words in shown(text)
    if words[0] != "launch"  # it takes torchrun's options, and a script with options of its own
]


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_that_is_shown_can_be_parsed(words: list[str]) -> None:
    with contextlib.suppress(typer.Exit):
        commands().commands[words[0]].make_context(words[0], words[1:])


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "README.md" else pytest.mark.full) for name in TEXTS],
)
def test_every_command_that_needs_no_ranks_runs(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage(TEXTS[name])
    for variable, value in {**synthetic.VARIABLES, "COLUMNS": "100", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(variable, value)
    for words in shown(TEXTS[name]):
        if words[0] not in ("sweep", *READ_ONLY) or NEEDS_MORE.search(" ".join(words)):
            continue
        prepare(words)
        words += without_charts(words[0])
        if words[0] == "sweep":
            words += ["--oversubscribe"] if "--gpus" in words else []  # whatever cores there are
            words += ["--repetitions", "2"] if "--repetitions" not in words else []
        assert run(words) == 0, (words, capsys.readouterr().err[-2000:])


def stage(text: str) -> None:
    """Lay out what the commands of a document read: its files, a model, and results."""
    Path("results").mkdir()
    for name in ("examples", "published"):
        Path("results", name).symlink_to(ROOT / "results" / name)
    files = dict.fromkeys(("my_model.py", "model.py"), TEMPLATE.read_text())
    files["table.csv"] = (ROOT / "results/published/torch_ddp_rtx3090.csv").read_text()
    for block in BLOCK.finditer(text):
        if named := NAMED_FILE.match(block["body"]):
            files[named["name"]] = block["body"]
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)


def prepare(words: list[str]) -> None:
    """Copy the example to the results that a command reads, and clear those that it makes."""
    made = f"results/{words[words.index('--name') + 1]}" if "--name" in words else ""
    for name in {*RESULTS.findall(shlex.join(words))} - {made}:
        if not Path(name).exists():
            shutil.copytree(EXAMPLE, name)
    if made and "--resume" not in words:
        shutil.rmtree(made, ignore_errors=True)
    if words[0] == "init":
        Path(words[1]).unlink(missing_ok=True)
