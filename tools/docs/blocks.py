"""The parts of a Markdown document that are generated, and what belongs into them.

A part stands below a comment, which a reader of the rendered page does not see:

    <!-- generated: output -->             a fenced block; its lines `$ dpbench …` are run
    <!-- generated: output, paragraph 1 -->  only that part of what they print; "…" is the rest
    <!-- generated: python -->             a fenced block; its lines `>>> …` are run
    <!-- generated: columns shown -->      a table, made from the code

Commands run in this process, on a copy of the results, and only read: their numbers come from
results/examples and results/published, so they are the same on every machine.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from dpbench.cli import app
from tools.docs import ROOT, tables

GENERATED = re.compile(
    r"^(?P<head><!-- generated: (?P<kind>\w+)(?:,? (?P<details>[^\n]+))? -->\n(?P<fence>```\w*\n)?)"
    r"(?P<body>(?(fence).*?(?=^```$)|(?:\|[^\n]*\n)*))",
    re.MULTILINE | re.DOTALL,
)
"""A generated part: `body` is what stands between the fences, or the lines of the table."""
COMMAND = re.compile(r"^\$ (dpbench (?:.*\\\n)*.*)\n", re.MULTILINE)
PARAGRAPHS = re.compile(r"paragraphs? (?P<first>\d+)(?:-(?P<last>\d+))?")
OMISSION = "…"


def generate_body(part: re.Match[str]) -> str:
    """The body as it should be; call it inside `sandbox()`."""
    kind, details = part["kind"], part["details"] or ""
    if kind == "output":
        return console(part["body"], details)
    if kind == "python":
        return session(part["body"])
    return tables.table(kind, details)


def regenerate(text: str) -> str:
    """The document with every generated part made anew."""
    return GENERATED.sub(lambda part: part["head"] + generate_body(part), text)


@contextlib.contextmanager
def sandbox() -> Iterator[None]:
    """Inside, the working directory has copies of the results; what is written there is dropped."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {"COLUMNS": "100", "NO_COLOR": "1"}),
        contextlib.chdir(folder),
    ):
        for name in ("examples", "published"):
            shutil.copytree(ROOT / "results" / name, Path("results", name))
        yield


def console(body: str, details: str) -> str:
    """The commands of a block, each followed by what it prints, or the paragraphs wanted of it."""
    commands = COMMAND.findall(body)
    return "".join(f"$ {one}\n{choose_paragraphs(run_command(one), details)}" for one in commands)


def run_command(command: str) -> str:
    """What `dpbench …` writes to stdout; raises AssertionError unless it exits with 0."""
    _, *words = shlex.split(command.replace("\\\n", " "))
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        status = app.run([*words, *["--no-charts"] * (words[0] == "report")])  # they take time
    assert status == 0, f"{command}: exit status {status}: {stderr.getvalue()}"
    return "".join(f"{line.rstrip()}\n" for line in stdout.getvalue().splitlines())


def choose_paragraphs(text: str, details: str) -> str:
    """The paragraphs that `details` names; what is left out on either side leaves a mark."""
    if not details:
        return text
    paragraphs = text.strip("\n").split("\n\n")
    wanted = PARAGRAPHS.fullmatch(details)
    assert wanted, f"generated: output, {details}: expected {PARAGRAPHS.pattern}"
    first, last = int(wanted["first"]), int(wanted["last"] or wanted["first"])
    assert first <= last <= len(paragraphs), f"{details}: there are {len(paragraphs)}"
    before, after = [OMISSION] * (first > 1), [OMISSION] * (last < len(paragraphs))
    return "\n\n".join([*before, *paragraphs[first - 1 : last], *after]) + "\n"


def session(body: str) -> str:
    """The statements of a Python session, each followed by what it shows."""
    shown = []
    names: dict[str, object] = {}
    for example in doctest.DocTestParser().get_examples(body):
        first, *others = example.source.splitlines()
        shown += [f">>> {first}", *(f"... {line}" for line in others)]
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(example.source, "<documentation>", "single"), names)
        shown += output.getvalue().rstrip().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in shown)
