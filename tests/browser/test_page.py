"""The report page in a real browser, opened from disk."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Opener, Tab
from tests.report.page.sample import SHOWS, TITLE, results, sample_page, sweep
from tests.report.page.test_html import hostile_page

NARROW = {"width": 400, "height": 800}
DARK_PAPER = "rgb(20, 23, 26)"


def look(shown: Tab, selector: str, of: str = "color") -> str:
    """A computed style of the first element."""
    script = f"selector => getComputedStyle(document.querySelector(selector)).{of}"
    value: str = shown.evaluate(script, selector)
    return value


def test_charts_are_seen_and_have_an_alternative_in_words(shown: Tab) -> None:
    picture = shown.get_by_role("img", name=TITLE)
    assert picture.bounding_box()["width"] > 500
    described = picture.get_attribute("aria-describedby")
    assert shown.locator(f"#{described}").text_content() == SHOWS
    assert shown.get_by_text("throughput (images/s)").is_visible()


def test_dark_is_dark_for_charts_too(shown: Tab) -> None:
    looks = []
    for scheme in ("light", "dark"):
        shown.emulate_media(color_scheme=scheme)
        looks.append(
            (
                look(shown, "body", "backgroundColor"),
                look(shown, "body"),
                look(shown, ".picture text", "fill"),
                look(shown, ".picture [style*=chart-blue]", "stroke"),
                look(shown, "tr[data-status=failed] td"),
            )
        )
    light, dark = looks
    assert dark[0] == DARK_PAPER
    assert all(one != other for one, other in zip(light, dark, strict=True))


def test_a_chosen_theme_is_remembered_until_it_is_the_systems_again(shown: Tab) -> None:
    shown.get_by_role("button", name="Dark theme").click()
    for _ in range(10):  # a busy browser may load a page anew before it has stored what it was told
        shown.reload()
        if look(shown, "body", "backgroundColor") == DARK_PAPER:
            break
    assert look(shown, "body", "backgroundColor") == DARK_PAPER
    shown.get_by_role("button", name="Light theme").click()
    assert shown.evaluate("localStorage.length") == 0
    assert look(shown, "body", "backgroundColor") == "rgb(255, 255, 255)"


def test_the_command_is_copied(shown: Tab) -> None:
    shown.get_by_text("How is it repeated?").last.click()
    shown.get_by_role("button", name="Copy", exact=True).click()
    shown.get_by_role("button", name="Copied").wait_for()
    assert shown.evaluate("navigator.clipboard.readText()") == sweep().command


def test_axe_finds_no_problem(shown: Tab) -> None:
    from axe_playwright_python.sync_playwright import Axe

    shown.locator(".chooser summary").first.click()
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")  # which opens all that is folded
    found = Axe().run(shown).response["violations"]
    shown.emulate_media(color_scheme="dark")
    found += Axe().run(shown, options={"runOnly": ["color-contrast"]}).response["violations"]
    assert [(problem["id"], problem["nodes"][0]["html"]) for problem in found] == []


def test_axe_finds_no_problem_where_there_is_nothing_to_say(open_page: Opener) -> None:
    from axe_playwright_python.sync_playwright import Axe

    shown = open_page(sample_page(command="", results=results(()), findings=(), failures=None))
    found = Axe().run(shown).response["violations"]
    assert [(problem["id"], problem["nodes"][0]["html"]) for problem in found] == []


def test_hostile_names_do_nothing(open_page: Opener) -> None:
    shown = open_page(hostile_page(), viewport=NARROW)
    assert shown.locator("script").count() == 2
    assert shown.locator("h1").inner_text().startswith("<script>alert('x')</script>")
    assert shown.evaluate("document.documentElement.scrollWidth") == NARROW["width"]


def test_a_narrow_page_scrolls_its_tables_and_not_itself(shown: Tab) -> None:
    usual = shown.viewport_size
    shown.set_viewport_size(NARROW)
    try:
        assert shown.evaluate("document.documentElement.scrollWidth") == NARROW["width"]
        box = "document.querySelector('.table .scroll')"
        assert shown.evaluate(f"{box}.scrollWidth > {box}.clientWidth")
    finally:
        shown.set_viewport_size(usual)


@pytest.mark.parametrize(("width", "rows"), [(400, 4), (700, 2), (1000, 2), (1280, 1), (1600, 1)])
def test_no_finding_is_alone_in_a_row_of_several(shown: Tab, width: int, rows: int) -> None:
    usual = shown.viewport_size
    shown.set_viewport_size({"width": width, "height": 800})
    try:
        tops = [card.bounding_box()["y"] for card in shown.locator(".findings > li").all()]
    finally:
        shown.set_viewport_size(usual)
    assert sorted(map(tops.count, {*tops})) == [4 // rows] * rows


def test_no_line_ends_within_an_option(shown: Tab) -> None:
    option = shown.locator(".about .whole", has_text="--accumulate 4").first
    usual, high = shown.viewport_size, option.bounding_box()["height"]
    try:
        for width in range(320, 480, 20):
            shown.set_viewport_size({"width": width, "height": 800})
            assert option.bounding_box()["height"] == high
    finally:
        shown.set_viewport_size(usual)


def test_headers_stay_above_their_columns_on_a_narrow_page(open_page: Opener) -> None:
    shown = open_page(sample_page(), viewport=NARROW)
    places = shown.evaluate(
        """() => {
            const table = document.querySelector("#table-configurations");
            table.parentElement.scrollLeft = 260;
            const lefts = (row) => [...row.cells].filter((cell) => cell.offsetWidth > 0)
                .map((cell) => cell.getBoundingClientRect().left);
            return [table.parentElement.scrollLeft, lefts(table.rows[0]), lefts(table.rows[1])];
        }"""
    )
    scrolled, headers, cells = places
    assert scrolled > 100
    assert headers == cells


def test_what_is_folded_is_printed(open_page: Opener) -> None:
    shown = open_page(sample_page(warnings=tuple(f"warning {k}" for k in range(9))))
    folded = (shown.get_by_text("warning 8"), shown.get_by_text(sweep().command))
    assert not any(text.is_visible() for text in folded)
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert all(text.is_visible() for text in folded)


def test_a_link_to_a_folded_question_opens_it(open_page: Opener) -> None:
    shown = open_page(sample_page())
    assert not shown.get_by_text(sweep().command).is_visible()
    shown.locator(".contents").get_by_text("How is it repeated?").click()
    assert shown.get_by_text(sweep().command).is_visible()


def test_the_speed_is_in_sight_on_a_narrow_page(open_page: Opener) -> None:
    shown = open_page(sample_page(), viewport=NARROW)
    speed = shown.locator("#table-configurations tbody tr").first.locator("td.bar")
    box = speed.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= NARROW["width"]
    name = shown.locator("#table-configurations tbody th").first
    assert name.get_attribute("data-rest") == "shm ×1, 16"


def test_print_has_all_rows_and_no_controls(open_page: Opener) -> None:
    many = results(sweep().results.rows * 20)
    shown = open_page(sample_page(results=many), color_scheme="dark")
    shown.locator("input[type=search]").fill("gloo")
    shown.emulate_media(media="print")
    assert all(row.is_visible() for row in shown.locator("tbody tr").all()[::10])
    for control in (".controls", "#theme", ".contents", "[data-copy-command]"):
        assert not shown.locator(control).first.is_visible()
    box = "document.querySelector('.table .scroll')"
    assert shown.evaluate(f"{box}.scrollHeight - {box}.clientHeight") <= 1
    assert look(shown, "body", "backgroundColor") == "rgb(255, 255, 255)"
    assert look(shown, ".chart", "breakInside") == "avoid"


def test_without_scripts_everything_can_be_read(open_page: Opener) -> None:
    shown = open_page(sample_page(), java_script_enabled=False)
    headers = shown.locator("#table-configurations thead th")
    assert all(header.is_visible() for header in headers.all())
    assert shown.locator("button:visible, input:visible").count() == 0
    shown.get_by_text("How is it repeated?").last.click()
    assert shown.get_by_text(sweep().command).is_visible()


def test_the_first_stop_of_the_keyboard_skips_to_the_content(shown: Tab) -> None:
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.className") == "skip"
    shown.keyboard.press("Enter")
    assert shown.evaluate("document.activeElement.id") == "content"
