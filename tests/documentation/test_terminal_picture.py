"""The animated picture shows each line when it stood on the screen."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.documentation.terminal_picture import HOLD_SECONDS, Frame, Span, spans, svg

FRAMES = (
    Frame(at_seconds=0.0, lines=("$ dpbench", "", "")),
    Frame(at_seconds=2.0, lines=("$ dpbench", "1 of 2", "")),
    Frame(at_seconds=3.0, lines=("$ dpbench", "2 of 2", "done")),
)


def test_a_line_lasts_until_another_takes_its_place() -> None:
    assert list(spans(FRAMES, 5.0)) == [
        Span(row=0, text="$ dpbench", start=0.0, end=5.0),
        Span(row=1, text="1 of 2", start=2.0, end=3.0),
        Span(row=1, text="2 of 2", start=3.0, end=5.0),
        Span(row=2, text="done", start=3.0, end=5.0),
    ]


def test_it_is_played_at_the_speed_it_had() -> None:
    drawn = ElementTree.fromstring(svg(FRAMES, 80, "a sweep"))
    namespace = {"svg": "http://www.w3.org/2000/svg"}
    played = {
        text.text: (animate.get("keyTimes"), animate.get("values"), animate.get("dur"))
        for text in drawn.iterfind(".//svg:text", namespace)
        for animate in text.iterfind("svg:animate", namespace)
    }
    seconds = 3.0 + HOLD_SECONDS
    assert played["1 of 2"] == (
        f"0;{2 / seconds:.4f};{3 / seconds:.4f}",
        "hidden;visible;hidden",
        f"{seconds:.2f}s",
    )
    assert played["done"][:2] == (f"0;{3 / seconds:.4f}", "hidden;visible")
    assert played["$ dpbench"][:2] == ("0", "visible")
