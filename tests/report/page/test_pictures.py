"""The charts of a page: saved once, as a file with its words and as a part of the page without."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from dpbench.report.charts import style
from dpbench.report.charts.files import svg_of
from dpbench.report.charts.kinds import CHARTS
from dpbench.report.page import pictures
from dpbench.report.page.pictures import THEME, inline_svg
from tests.analysis.builders import run, trial
from tests.report.page.sample import CAPTION, HOSTILE, SHOWS, TITLE, chart
from tests.report.sample import subject


@pytest.fixture
def two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has something to show, and one that has not."""
    kinds = {name: CHARTS[name] for name in ("speedup", "step-shares")}
    monkeypatch.setattr(pictures, "CHARTS", kinds)


@pytest.mark.usefixtures("two_kinds")
def test_files_have_their_words_and_those_that_are_older_are_named(tmp_path: Path) -> None:
    """Of any name: "\u624b" is in no font that matplotlib has, which is no warning here."""
    for name in ("speedup.png", "step-shares.png", "step-shares.pdf", "mine.png"):
        (tmp_path / name).touch()
    measured = subject([run(trial(group_size=n), 100.0 * n) for n in (1, 2)])
    found = pictures.draw(replace(measured, name="\u624b"), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"speedup.svg", "speedup.png", "mine.png"}
    assert found.paths == (tmp_path / "speedup.svg",)
    assert found.older == (tmp_path / "speedup.png",)
    file = found.paths[0].read_text(encoding="utf-8")
    ((kind, image),) = found.drawn
    assert f">{kind.title}</text>" in file
    assert f">{kind.title}</text>" not in image.svg
    assert "\u624b" in file
    assert "\u624b" in image.caption
    assert "\u624b" not in image.svg


@pytest.mark.usefixtures("two_kinds")
def test_each_chart_is_saved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []

    def save(*given: object) -> str:
        saved.append(given)
        return svg_of(*given)

    svg_of = pictures.svg_of
    monkeypatch.setattr(pictures, "svg_of", save)
    pictures.draw(subject([run(trial(group_size=n), 100.0 * n) for n in (1, 2)]), tmp_path)
    assert len(saved) == 1


def draw(label: str = "x") -> str:
    with style.house_style():
        figure = Figure(figsize=(2, 1.5))
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=style.ORANGE, marker="s", label=label)
        axes.text(0.2, 0.5, "on a colour", color="white", parse_math=False)
        axes.set_title(label, parse_math=False)
        return inline_svg(figure, svg_of(figure), kind="loss", title=label, description="falls")


@pytest.fixture(scope="module")
def picture() -> ElementTree.Element:
    return parsed(chart().svg)


def test_the_picture_is_named_and_described(picture: ElementTree.Element) -> None:
    title, description = picture[0], picture[1]
    assert (picture.get("role"), title.tag, description.tag) == ("img", "title", "desc")
    assert (title.text, description.text) == (TITLE, SHOWS)
    assert picture.get("aria-labelledby") == title.get("id")
    assert picture.get("aria-describedby") == description.get("id")


def test_it_scales_with_the_page(picture: ElementTree.Element) -> None:
    assert "viewBox" in picture.attrib
    assert not {"width", "height", "version"} & set(picture.attrib)


def test_title_and_caption_are_text_of_the_page(picture: ElementTree.Element) -> None:
    drawn = [element.text for element in picture.iter("text")]
    assert "group size (replicas)" in drawn
    assert TITLE not in drawn
    assert not any("repetitions" in (words or "") for words in drawn)
    assert chart().caption == CAPTION


def test_colours_are_the_themes(picture: ElementTree.Element) -> None:
    styles = " ".join(element.get("style", "") for element in picture.iter())
    assert "var(--chart-blue)" in styles
    assert "var(--chart-grid)" in styles
    assert "var(--paper)" in styles
    assert not [colour for colour in THEME if colour.lower() in styles.lower()]


def test_white_letters_stay_white() -> None:
    letters = next(e for e in parsed(draw()).iter("text") if e.text == "on a colour")
    assert "fill:#ffffff" in (letters.get("style") or "")


def test_ids_of_different_charts_never_meet_and_every_reference_is_met() -> None:
    one, other = draw("one"), draw("other")
    assert not set(ids(one)) & set(ids(other))
    for markup in (one, other):
        assert len(ids(markup)) == len(set(ids(markup)))
        referred = re.findall(r'(?:url\(|href=")#([^)"]+)', markup)
        assert referred
        assert set(referred) <= set(ids(markup))


def test_equal_charts_are_written_equally() -> None:
    assert draw() == draw()


def test_nothing_of_a_document_is_left(picture: ElementTree.Element) -> None:
    markup = chart().svg
    assert not re.search("metadata|<style|xmlns|DOCTYPE|DejaVu", markup)
    assert not re.search(r"\d\.\d{3}", markup)


def test_the_room_of_title_and_caption_is_cut_off_and_nothing_else() -> None:
    """The file has them: a line of 12 points above, two of 7.5 below, and their margins."""
    with style.house_style():
        figure, (axes,) = style.panels(1)
        axes.set_title("highest", parse_math=False)
        axes.set_xlabel("lowest")
        style.finish(figure, title=TITLE, caption=f"{CAPTION} {CAPTION}")
        file = svg_of(figure)
        markup = inline_svg(figure, file, kind="speedup", title=TITLE, description="")
    assert f">{TITLE}</text>" in file
    assert f">{CAPTION[:60]}" in file
    left, top, width, height = map(float, (parsed(markup).get("viewBox") or "").split())
    words = {text.text: float(text.get("y") or 0) for text in parsed(markup).iter("text")}
    assert (left, width) == (0, pytest.approx(72 * figure.get_figwidth()))
    assert top < words["highest"] - 10 < words["lowest"] + 3 < top + height
    assert 12 + 2 * 7.5 < 72 * figure.get_figheight() - height < 50


def test_hostile_words_are_words() -> None:
    markup = draw(HOSTILE)
    assert "<script" not in markup
    assert "&lt;script&gt;alert('x')" in markup
    assert "␛[31m␀�gnp.exe" in markup


def parsed(markup: str) -> ElementTree.Element:
    return ElementTree.fromstring(markup)


def ids(markup: str) -> list[str]:
    return re.findall(r' id="([^"]+)"', markup)
