"""The page as markup: complete, self-contained, and harmless whatever the records hold."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpbench.report.page.content import Finding, Page
from dpbench.report.page.html import to_html, visible
from dpbench.report.table import Table, TableCell, TableRow
from tests.report.page.sample import COLUMNS, HOSTILE, configurations, results, sample_page, sweep


class Seen(HTMLParser):
    """Every tag with its attributes, every text, and what was opened but not closed."""

    VOID = frozenset({"meta", "link", "input", "br"})

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def values(self, name: str) -> list[str]:
        return [value for _, a in self.tags if (value := a.get(name)) is not None]


@pytest.fixture(scope="module")
def markup() -> str:
    return to_html(sample_page())


@pytest.fixture(scope="module")
def seen(markup: str) -> Seen:
    return Seen(markup)


def hostile_page() -> Page:
    """Everything that may come from a record is an attack."""
    row = TableRow(cells=tuple(TableCell(text=HOSTILE, sort=HOSTILE) for _ in COLUMNS))
    return Page(
        title=HOSTILE,
        version="0.1.0",
        sweep=sweep(
            state=HOSTILE,
            findings=(Finding(title=HOSTILE, value=HOSTILE, about=HOSTILE),),
            warnings=(HOSTILE,),
            environment=((HOSTILE, HOSTILE),),
            command=HOSTILE,
            results=results((replace(row, status="failed"),)),
            notes=(HOSTILE, "\ud800"),
        ),
    )


def test_every_tag_is_closed_and_every_id_is_one_of_a_kind(seen: Seen) -> None:
    assert seen.open == []
    ids = seen.values("id")
    assert len(ids) == len(set(ids))


def test_what_is_labelled_and_linked_is_there(seen: Seen) -> None:
    ids = set(seen.values("id"))
    for name in ("aria-labelledby", "aria-describedby"):
        assert set(seen.values(name)) <= ids
    assert {a["href"][1:] for a in seen.all("a") if a["href"]} <= ids


def test_it_needs_nothing_from_elsewhere(seen: Seen) -> None:
    references = seen.values("src") + [
        h for h in seen.values("href") if not h.startswith(("#", "data:"))
    ]
    assert references == []


def test_only_its_own_scripts_may_run(seen: Seen, markup: str) -> None:
    scripts = re.findall("<script>(.*?)</script>", markup, re.DOTALL)
    digests = {
        "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for text in scripts
    }
    (policy,) = (m["content"] for m in seen.all("meta") if "http-equiv" in m)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert set(rules["script-src"].split()) == digests
    assert "connect-src" not in rules


def test_everything_that_the_content_says_is_said(seen: Seen) -> None:
    text = " ".join("".join(seen.texts).split())
    page = sample_page()
    part = page.sweep
    said = [page.title]
    said += [part.state, part.started or "", *part.warnings, *part.notes, part.command]
    said += [word for fact in part.environment for word in fact]
    said += [c.text for row in part.results.rows for c in row.cells]
    said += [finding.about for finding in part.findings]
    said += [c.meaning for c in part.results.columns]
    said += [note for section in part.sections for note in section.notes]
    assert [words for words in said if words not in text] == []


def test_a_number_is_large_and_its_interval_is_not(markup: str) -> None:
    whole = '<span class="whole"><strong>{}</strong> {}</span> <span>{}</span>'
    assert whole.format("2,662", "± 294", "images/s") in markup
    assert whole.format("5.1", "(2.0–9.4)", "ms") in markup
    assert "<strong>91</strong> ± 16 %</span></p>" in markup


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("try --accumulate 4 or raise --steps", ["--accumulate 4", "--steps"]),
        ("torch-ddp/gloo ×3, batch 32 (n = 3)", ["torch-ddp/gloo ×3,", "batch 32", "(n = 3)"]),
        ("at 4.9e-15, 5.1 ± 0.2 ms; 91 %", ["4.9e-15,", "5.1 ± 0.2 ms;", "91 %"]),
        ("one step of 3 samples & <b>", []),
    ],
)
def test_no_line_ends_within_an_option_a_label_or_a_number(text: str, whole: list[str]) -> None:
    markup = to_html(sample_page(notes=(text,)))
    line = re.search("<li>(.*)</li>", markup.partition('class="notes"')[2])
    assert line is not None
    assert re.findall('<span class="whole">(.*?)</span>', line[1]) == whole
    assert "".join(Seen(line[1]).texts) == text


def test_long_lists_are_folded_after_their_first_lines() -> None:
    warnings = tuple(f"warning {number}" for number in range(7))
    seen = Seen(to_html(sample_page(warnings=warnings)))
    assert len([a for a in seen.all("details") if a.get("class") == "more"]) == 1
    assert "3 more" in seen.texts
    assert set(warnings) <= {text.strip() for text in seen.texts}


def test_what_there_is_not_has_no_section() -> None:
    seen = Seen(to_html(sample_page(results=results(()), command="", failures=None)))
    ids = seen.values("id")
    assert not {"results", "command", "table-configurations"} & set(ids)
    assert {a["href"][1:] for a in seen.all("a") if a["href"]} <= set(ids)
    assert "What trains: ours (dp, ddp) or torch's." not in seen.texts


def test_hostile_records_are_text_and_nothing_else() -> None:
    markup = to_html(hostile_page())
    markup.encode()
    seen, plain = Seen(markup), Seen(to_html(sample_page()))
    assert len(seen.all("script")) == 2
    assert {tag for tag, _ in seen.tags} <= {tag for tag, _ in plain.tags}
    assert not [name for _, a in seen.tags for name in a if name.startswith("on")]
    assert "\u202e" not in markup
    assert "49" not in "".join(t for t in seen.texts if "alert" in t)


def test_a_row_sorts_by_value_and_nothing_sorts_last() -> None:
    table = Table(
        key="t",
        caption="",
        columns=COLUMNS[:3],
        rows=(
            TableRow(
                cells=(
                    TableCell(text="a", sort="a"),
                    TableCell(text="1 GiB", sort=1073741824),
                    TableCell(text="–", sort=None),
                )
            ),
        ),
    )
    markup = to_html(sample_page(results=table, sections=(), failures=None))
    assert '<th scope="row" class="t">a</th>' in markup
    assert '<td class="t" data-v="1.07374182e+09">1 GiB</td>' in markup
    assert "<td data-v>–</td>" in markup


def test_names_in_sentences_are_code_and_their_text_stays_text() -> None:
    markup = to_html(sample_page(notes=("against `single`, not `<b>`",)))
    assert "against <code>single</code>, not <code>&lt;b&gt;</code>" in markup


def test_a_column_is_defined_once_for_each_meaning(seen: Seen) -> None:
    defined = [text.strip() for text in seen.texts].count("How the trial ended.")
    assert defined == 1 + 1  # for all tables together, and in the chooser of the one that has it


def test_bars_are_parts_of_the_largest(seen: Seen) -> None:
    bars = [a["style"] for a in seen.all("td") if a.get("class") == "bar"]
    assert len(bars) == 8
    assert bars[-1] == "--bar:100%"
    assert bars[0] == "--bar:68%"  # 1400 of 2059


def test_bars_of_several_works_are_parts_of_the_largest_of_each() -> None:
    """Speeds of two architectures are not ranked against each other."""
    rows = [
        replace(row, work=work)
        for work, row in zip(("gpt", "mlp"), configurations()[:2], strict=True)
    ]
    cells = Seen(to_html(sample_page(results=results(tuple(rows))))).all("td")
    assert [a["style"] for a in cells if a.get("class") == "bar"] == ["--bar:100%"] * 2


def test_a_page_without_anything_is_a_page() -> None:
    page = sample_page(
        findings=(),
        warnings=(),
        environment=(),
        notes=(),
        failures=None,
        sections=(),
        started=None,
        results=results(()),
    )
    assert Seen(to_html(page)).open == []


def test_control_characters_have_pictures() -> None:
    assert visible("\x1b[31mred\x00\x7f") == "␛[31mred␀␡"


def test_lines_and_tabs_stay() -> None:
    assert visible("one\r\ntwo\n\tthree") == "one\ntwo\n\tthree"


def test_what_turns_the_direction_of_writing_is_shown() -> None:
    assert visible("exe.\u202egnp") == "exe.�gnp"


@given(st.text(st.characters(blacklist_categories=())))
def test_any_text_can_be_written_and_hides_nothing(text: str) -> None:
    seen = visible(text)
    seen.encode()
    assert not {"Cc", "Cs"} & {unicodedata.category(c) for c in seen if c not in "\n\t"}
    assert visible(seen) == seen


@given(st.text(st.characters(whitelist_categories=("L", "N", "P", "S", "Zs"))))
def test_plain_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text
