"""The `dpbench …` commands that the documents show.

A command is found wherever it is shown: on a line of a fenced block, in a value of a YAML block, or
within a sentence with its arguments. No list says which: a command that is new in a document is run
from then on. Not commands are what says itself that it is none: a line with an ellipsis, and
placeholders in capitals (`dpbench report DIR`). Blocks behind `<!-- generated: output -->` are run
by tests/test_docs.py, which also compares what they print.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

ELLIPSIS = "…"
BLOCK = re.compile(
    r"^(?P<generated><!-- generated: output[^\n]* -->\n)?"
    r"```(?P<language>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
INLINE = re.compile(r"`(dpbench [a-z-]+ [^`]+)`")
PLACEHOLDER = re.compile(r"(?<![\w$-])[A-Z]+\b")
TYPED = re.compile(
    r"(?:\$ )?(?P<variables>(?:[A-Z_]+=\S+ )*)(?:exec |python -m )?dpbench (?P<words>[a-z].*)"
)
IN_RANKS = re.compile(r"(?:torchrun|torchx run) .*? -m dpbench (?:-- )?(?P<words>.*)")
"""Launchers that are not dpbench's: what each of their processes runs."""
NAMED_FILE = re.compile(r"# (?P<name>[\w/]+\.\w+)\n")
"""The first line of a block that shows a file."""
SHELL_VARIABLES = {"JOB_COMPLETION_INDEX": "0", "HOME": "."}


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """One command."""

    document: str
    line: int
    words: tuple[str, ...]
    """What stands behind `dpbench`, as a shell splits it."""
    variables: tuple[tuple[str, str], ...] = ()
    in_rank: bool = False
    """Whether torchrun or another launcher starts it on several nodes, once in each rank."""

    def __str__(self) -> str:
        return shlex.join(self.words)

    @property
    def name(self) -> str:
        return self.words[0]

    @property
    def spans_nodes(self) -> bool:
        return self.in_rank or "--nnodes" in self.words

    def value(self, option: str) -> str | None:
        """What is typed behind the option."""
        return dict(zip(self.words, (*self.words[1:], None), strict=True)).get(option)


def shown(document: str, text: str) -> list[Shown]:
    """The commands of a document in their order."""
    found = [*_in_blocks(text), *_in_sentences(text)]
    return [
        Shown(
            document=document,
            line=text.count("\n", 0, place) + 1,
            words=_words(match["words"]),
            variables=_variables(match),
            in_rank=match.re is IN_RANKS,
        )
        for place, line in sorted(found)
        if ELLIPSIS not in line and (match := TYPED.fullmatch(line) or IN_RANKS.fullmatch(line))
    ]


def files(text: str) -> dict[str, str]:
    """The files that a document shows, by the name in their first line."""
    bodies = (block["body"] for block in BLOCK.finditer(text))
    return {named["name"]: body for body in bodies if (named := NAMED_FILE.match(body))}


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
    """Without comment, pipe and redirection; a path from the root is one of the place."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|<>")
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if word in ("|", ">"):
            break
        for name, value in SHELL_VARIABLES.items():
            word = word.replace(f"${name}", value)
        words.append(word.lstrip("/"))
    return tuple(words)


def _variables(match: re.Match[str]) -> tuple[tuple[str, str], ...]:
    typed = match.groupdict().get("variables") or ""
    return tuple((name, value) for name, _, value in (v.partition("=") for v in typed.split()))
