"""LaTeX, HTML and Markdown: what they look like, and that a cell can be nothing but text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.report.export.formats import html_table, latex, latex_table, markdown_table
from dpbench.report.table import Table, text_table

SMALL = text_table(
    ("Name", "Images/s"),
    [("a_b", "1,000 ± 2"), ("–", "-64 ± 195 µs")],
    words=("Name",),
    caption="mix_1: 100 %",
)


def test_a_latex_table_of_booktabs() -> None:
    assert latex_table(SMALL) == "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            r"\caption{mix\_1: 100 \%}",
            r"\label{tab:dpbench}",
            r"\begin{tabular}{lr}",
            r"\toprule",
            r"Name & Images/s \\",
            r"\midrule",
            r"a\_b & 1,000 $\pm$ 2 \\",
            r"-- & $-$64 $\pm$ 195 $\mu$s \\",
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("86.1 ± 1.4 %", r"86.1 $\pm$ 1.4 \%"),
        ("ddp/gloo ×2, batch 32", r"ddp/gloo $\times$2, batch 32"),
        ("1.9 (0.8–4.4)", "1.9 (0.8--4.4)"),
        ("-1.2e-5 ± 0.3e-5", r"$-$1.2$\cdot10^{-5}$ $\pm$ 0.3$\cdot10^{-5}$"),
        ("1e+06", r"1$\cdot10^{6}$"),
        ("3e8", r"3$\cdot10^{8}$"),
        ("torch-ddp", "torch-ddp"),
        ("2026-11-21", "2026-11-21"),
        ("4cc9eb1e7837", "4cc9eb1e7837"),
        ("raise --steps", "raise -{}-steps"),
        ("> 3 s", "$>$ 3 s"),
        ("skipped: torch…", r"skipped: torch\ldots{}"),
        (r"\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ('$#&~^|"`', "\\$\\#\\&\\textasciitilde{}\\textasciicircum{}$|$''\\textasciigrave{}"),
        ("[*]", "{[}{*}]"),
        ("é\x1b漢", "e ?"),
    ],
)
def test_latex_prints_what_the_text_says(text: str, expected: str) -> None:
    assert latex(text) == expected


ESCAPED = re.compile(r"\\(?:[{}$&#%_]|[a-z]+(?:\{\})?)|\$[^$]*\$|\{[\[*]?\}")


@given(st.text(max_size=30))
def test_no_text_is_a_command_of_latex(text: str) -> None:
    written = latex(text)
    assert written.isascii()
    assert not re.search(r"[\\{}$&#%_~^<>|\n]", ESCAPED.sub("", written))


class Cells(HTMLParser):
    """The texts of headers and cells, and all tags."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag in ("td", "th", "caption"):
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.texts:
            self.texts[-1] += data


def test_an_html_fragment() -> None:
    lines = html_table(SMALL).splitlines()
    assert lines[0] == "<table>"
    assert lines[1] == "<caption>mix_1: 100 %</caption>"
    assert lines[3] == (
        '<tr><th scope="col" style="text-align: left">Name</th>'
        '<th scope="col" style="text-align: right; white-space: nowrap">Images/s</th></tr>'
    )
    assert lines[6] == (
        '<tr><td style="text-align: left">a_b</td>'
        '<td style="text-align: right; white-space: nowrap">1,000 ± 2</td></tr>'
    )
    assert lines[-1] == "</table>"


def table_of(cell: str) -> Table:
    return text_table("A", [(cell,), ("b",)], words="A")


printable = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=30)


@given(printable)
def test_html_says_the_text_and_has_no_other_tags(cell: str) -> None:
    found = Cells()
    found.feed(html_table(table_of(cell)))
    found.close()
    assert [text.strip("\n") for text in found.texts] == ["A", cell, "b"]
    assert found.tags == {"table", "thead", "tbody", "tr", "th", "td"}


@given(printable)
def test_a_cell_of_markdown_cannot_end_early_or_be_markup(cell: str) -> None:
    header, rule, line, _ = markdown_table(table_of(cell)).splitlines()
    bare = re.sub(r"\\.", "", line)
    assert bare.count("|") == 2
    assert not set(bare) & set("\\<>`*_[]~&")
    assert len(header) == len(rule) == len(line)


def test_numbers_of_markdown_stand_right() -> None:
    assert markdown_table(SMALL).splitlines() == [
        "| Name |     Images/s |",
        "| ---- | -----------: |",
        r"| a\_b |    1,000 ± 2 |",
        "| –    | -64 ± 195 µs |",
    ]
