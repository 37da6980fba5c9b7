r"""Tables as LaTeX's: a table environment with the rules of the package booktabs.

The result is plain ASCII, so that it needs no input encoding and no font but the standard ones;
of characters outside, those that tables of dpbench hold have commands, others become "?".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from dpbench.report.table import Table

_COMMANDS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    '"': "''",
    "`": r"\textasciigrave{}",
    "[": "{[}",  # at the start of a line it would be an argument of the one before
    "*": "{*}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "÷": r"$\div$",
    "−": "$-$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "·": r"$\cdot$",
    "µ": r"$\mu$",
    "μ": r"$\mu$",
    "σ": r"$\sigma$",
    "Σ": r"$\Sigma$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "²": r"$^2$",
    "₁": r"$_1$",
}
_EXPONENT = re.compile(r"(?<!\w)([\d.,]*\d(?:\(\d+\))?)e(-?)[+0]*(\d+)(?!\w)")
_MINUS = re.compile(r"(?<![\w)])-(?=\d)")
_POWER, _END, _APART = "\0\1\2"
"""Stand for commands until the characters around them are escaped."""
LABEL = "tab:dpbench"


def latex_table(table: Table) -> str:
    """Needs the package booktabs alone; numbers stand right, rows are not broken over pages."""
    alignment = "".join("l" if column.text else "r" for column in table.columns)
    body = [_line(line) for line in table.lines]
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            *([rf"\caption{{{latex(table.caption)}}}"] if table.caption else []),
            rf"\label{{{LABEL}}}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            _line(table.headers),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def latex(text: str) -> str:
    r"""Text that LaTeX prints as it reads: "1.2(3)e-5 µs" is "1.2(3)$\cdot10^{-5}$ $\mu$s"."""
    plain = "".join(" " if unicodedata.category(c) == "Cc" else c for c in text)
    marked = _MINUS.sub("−", plain).replace("--", f"-{_APART}-")
    marked = _EXPONENT.sub(rf"\1{_POWER}\2\3{_END}", marked)
    written = "".join(map(_character, marked))
    for mark, command in ((_POWER, r"$\cdot10^{"), (_END, "}$"), (_APART, "{}")):
        written = written.replace(mark, command)
    return written


def _line(cells: Iterable[str]) -> str:
    return " & ".join(map(latex, cells)) + r" \\"


def _character(character: str) -> str:
    if known := _COMMANDS.get(character):
        return known
    if character.isascii():
        return character
    plain = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode()
    return "".join(_COMMANDS.get(c, c) for c in plain) or "?"
