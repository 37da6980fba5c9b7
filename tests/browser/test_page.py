"""The report page in a real browser, opened from disk; without chromium the test is skipped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.report.pages import whole

pytestmark = pytest.mark.full

CHROMIUM = Path("/usr/bin/chromium")


def test_the_page_sorts_filters_and_fits_its_window(tmp_path: Path) -> None:
    api = pytest.importorskip("playwright.sync_api") if not _must_run() else _playwright()
    if not CHROMIUM.exists() and not _must_run():
        pytest.skip(f"there is no {CHROMIUM}")
    file = tmp_path / "index.html"
    file.write_text(whole(), encoding="utf-8")
    complaints: list[str] = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 900})
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.goto(file.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= 1280
        box = tab.locator("#results .scroll")
        assert box.evaluate("box => box.scrollWidth <= box.clientWidth"), "the table is cut"
        speeds = "#results tbody tr:not([hidden]) td:nth-child({})"
        header = tab.locator("#results th", has_text="Images/s")
        place = 1 + header.evaluate("cell => cell.cellIndex")
        bodies = tab.locator("#results tbody")
        assert bodies.count() == 2, "no rule between batch sizes"
        header.click()
        assert bodies.count() == 1, "a rule in a sorted table"
        shown = tab.locator(speeds.format(place)).all_inner_texts()
        numbers = [float(text.split()[0].replace(",", "")) for text in shown if text != "–"]
        assert numbers == sorted(numbers)
        assert shown[-1] == "–"
        tab.fill("#results input[type=search]", "torch-ddp -shm")
        rows = tab.locator("#results tbody tr:not([hidden])").all_inner_texts()
        assert rows
        assert all("torch-ddp" in row for row in rows)
        charts = "[...document.querySelectorAll('figure.chart svg')]"
        right = f"Math.max(...{charts}.map(right))"
        filled = f"(right => {right})(e => e.getBoundingClientRect().right)"
        assert tab.evaluate(filled) > 1280 - 100, "charts leave the right of the page empty"
        tab.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
        tab.locator("#results tr:not([hidden]) button").first.click()
        assert tab.evaluate("window.copied").startswith(
            "dpbench sweep --implementations torch-ddp "
        )
        tab.set_viewport_size({"width": 390, "height": 800})
        drawn = tab.locator("figure.chart svg").first
        assert drawn.evaluate("svg => svg.clientWidth <= svg.parentElement.clientWidth")
        tab.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        boxes = "[...document.querySelectorAll('.scroll, figure')]"
        assert tab.evaluate(f"{boxes}.every((box) => box.scrollWidth <= box.clientWidth)")
        browser.close()
    assert complaints == []


def _must_run() -> bool:
    return bool(os.environ.get("DPBENCH_SKIPS_FAIL"))


def _playwright() -> object:
    from playwright import sync_api

    return sync_api
