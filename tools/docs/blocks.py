"""The parts of a Markdown document that are generated, and what belongs into them.

A part stands below a comment, which a reader of the rendered page does not see:

    <!-- generated: output -->             a fenced block; its lines `$ dpbench …` are run
    <!-- generated: output, paragraph 1 -->  only that part of what they print; "…" is the rest
    <!-- generated: python -->             a fenced block; its lines `>>> …` are run
    <!-- generated: docstring sweep -->    a fenced block: the beginning of help(dpbench.sweep)
    <!-- generated: columns shown -->      a table, made from the code
"""

from __future__ import annotations

import re

from tools.docs import outputs, tables

GENERATED = re.compile(
    r"^(?P<head><!-- generated: (?P<kind>\w+)(?:,? (?P<details>[^\n]+))? -->\n(?P<fence>```\w*\n)?)"
    r"(?P<body>(?(fence).*?(?=^```$)|(?:\|[^\n]*\n)*))",
    re.MULTILINE | re.DOTALL,
)
"""A generated part: `body` is what stands between the fences, or the lines of the table."""


def generate_body(part: re.Match[str]) -> str:
    """The body as it should be; call it inside `outputs.sandbox()`."""
    kind, details = part["kind"], part["details"] or ""
    if kind == "output":
        return outputs.console(part["body"], details)
    if kind == "python":
        return outputs.session(part["body"])
    return tables.table(kind, details)


def regenerate(text: str) -> str:
    """The document with every generated part made anew."""
    return GENERATED.sub(lambda part: part["head"] + generate_body(part), text)
