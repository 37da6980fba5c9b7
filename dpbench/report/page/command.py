"""The commands that measure the same again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from dpbench.analysis.subject import Subject
from dpbench.report.page.environment import most_used
from dpbench.store import StoredCollectives, StoredSweep

AGAIN = "-again"
"""What a name gets behind it: the old folder stays as it is."""
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def command_of(subject: Subject) -> str:
    """What is typed, a line for each command; empty for published numbers.

    Variables of the environment that bear on results stand before the command.
    """
    stored = (subject.sweep, subject.collectives)
    return "\n".join(_line(one) for one in stored if one is not None)


def _line(stored: StoredSweep | StoredCollectives) -> str:
    used = [record.environment_id for record in stored.records]
    environment = most_used(stored.environments, used)
    variables = () if environment is None else environment.variables
    words = ["dpbench", *_again(stored.command)]
    nodes = len(stored.spec.nodes) if isinstance(stored, StoredSweep) else 0
    everywhere = [f"# on each of {nodes} nodes, with its own --node-rank"] if nodes else []
    return " ".join([*_settings(variables), *map(quoted, words), *everywhere])


def _settings(variables: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """What sets variables for one command; `env` does it where a name is none to a shell."""
    if all(_NAME.fullmatch(name) for name, _ in variables):
        yield from (f"{name}={quoted(value)}" for name, value in variables)
    else:
        yield "env --"
        yield from (quoted(f"{name}={value}") for name, value in variables)


def _again(words: Sequence[str]) -> Iterator[str]:
    """The same words into a folder of its own, from the start."""
    previous = ""
    for word in words:
        if previous == "--name" or word.startswith("--name="):
            yield f"{word}{AGAIN}"
        elif word != "--resume":
            yield word
        previous = word


def quoted(word: str) -> str:
    """For a shell; what cannot be seen with bash's $'…' and its escapes."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (
        c
        if c.isprintable() and c not in "\\'"
        else "".join(f"\\x{byte:02x}" for byte in c.encode("utf-8", "surrogatepass"))
        for c in word
    )
    return f"$'{''.join(escaped)}'"
