"""The charts of a page: saved once, as a file with its words and as a part of the page without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dpbench.report.charts.kinds import CHARTS
from dpbench.report.page import pictures
from tests.analysis.builders import run, trial
from tests.report.subjects import subject


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
