"""The `dpbench …` commands that the documents show, and a folder in which they can run.

A command is found on a line of a fenced block, in a YAML value, or within a sentence with its
arguments. A line with an ellipsis and a command with placeholders in capitals are no commands.
"""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpbench.cli.init import TEMPLATE
from tests.documentation import ROOT

BLOCK = re.compile(
    r"^(?P<generated><!-- generated: output[^\n]* -->\n)?"
    r"```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
INLINE = re.compile(r"`(dpbench [a-z-]+ [^`]+)`")
PLACEHOLDER = re.compile(r"(?<![\w$-])[A-Z]+\b")
COMMAND = re.compile(
    r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:exec |python -m |srun [^']*?)?dpbench (?P<words>[a-z].*)"
)
NAMED_FILE = re.compile(r"# (?P<name>[\w/]+\.\w+)\n")
"""The first line of a block that shows a file."""
RESULTS = re.compile(r"results/(?!examples|published)[\w-]+")
EXAMPLE = ROOT / "results" / "examples" / "two-cores"
READ_ONLY = ("report", "compare", "explain", "plot", "project", "list", "init")
NEEDS_MORE = re.compile(
    r"^explain .*(?:\.py|-m )|--nnodes|--example|\bmax\b|\btorchvision:|\bgpt2\.py:"
)
"""Words of a command that starts real processes, looks for other nodes, needs a library, or copies
what is staged already."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """One command of a document."""

    line: int
    words: tuple[str, ...]
    """What stands behind `dpbench`, as a shell splits it."""

    @property
    def name(self) -> str:
        return self.words[0]

    @property
    def runs_in_tests(self) -> bool:
        """Whether the launchers of the tests, which compute their numbers, can do what it asks."""
        words = " ".join(self.words)
        return self.name in ("sweep", *READ_ONLY) and not NEEDS_MORE.search(words)

    def value(self, option: str) -> str | None:
        """What is typed behind the option."""
        return dict(zip(self.words, (*self.words[1:], None), strict=True)).get(option)


def shown(text: str) -> list[Shown]:
    """The commands of a document in their order."""
    return [
        Shown(line=text.count("\n", 0, place) + 1, words=_words(match["words"]))
        for place, line in sorted([*_in_blocks(text), *_in_sentences(text)])
        if "…" not in line and (match := COMMAND.fullmatch(line))
    ]


def stage(folder: Path, text: str) -> None:
    """Lay out what the commands of a document read: its files, a model, and results."""
    (folder / "results").mkdir(parents=True)
    for name in ("examples", "published"):
        (folder / "results" / name).symlink_to(ROOT / "results" / name)
    files = dict.fromkeys(("my_model.py", "model.py"), TEMPLATE.read_text())
    files["table.csv"] = (ROOT / "results/published/torch_ddp_rtx3090.csv").read_text()
    for block in BLOCK.finditer(text):
        if named := NAMED_FILE.match(block["body"]):
            files[named["name"]] = block["body"]
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def prepare(folder: Path, command: Shown) -> None:
    """Copy the example to the results that a command reads, and clear those that it makes."""
    made = {f"results/{command.value('--name')}"}
    for name in {*RESULTS.findall(shlex.join(command.words))} - made:
        if not (folder / name).exists():
            shutil.copytree(EXAMPLE, folder / name)
    if "--resume" not in command.words:
        for name in made:
            shutil.rmtree(folder / name, ignore_errors=True)
    if command.name == "init":
        (folder / command.words[1]).unlink(missing_ok=True)


def _in_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Every line, or every text of a YAML block, that could be a command, and where it stands."""
    for block in BLOCK.finditer(text):
        if block["generated"]:
            continue
        if block["language"] == "yaml":
            for value in _texts(list(yaml.safe_load_all(block["body"]))):
                yield from ((block.start(), line) for line in value.splitlines())
            continue
        place = block.start("body")
        for line in re.findall(r"(?:.*\\\n)*.*\n", block["body"]):
            yield place, line.replace("\\\n", " ").strip()
            place += len(line)


def _in_sentences(text: str) -> Iterator[tuple[int, str]]:
    for match in INLINE.finditer(BLOCK.sub(lambda block: " " * len(block[0]), text)):
        if not PLACEHOLDER.search(match[1]):
            yield match.start(), " ".join(match[1].split())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _words(command: str) -> tuple[str, ...]:
    """The words without a comment, a pipe or a redirection."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|<>")
    lexer.whitespace_split = True
    return tuple(itertools.takewhile(lambda word: word not in ("|", ">"), lexer))
