"""An animated picture of a terminal: what was on the screen, played at the speed it had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

HOLD_SECONDS = 6.0
"""How long the last screen stays before the picture starts again."""
LINE_PIXELS, CHARACTER_PIXELS, MARGIN = 18, 8.4, 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """What the screen shows from a moment on."""

    at_seconds: float
    lines: tuple[str, ...]
    """As SVG: escaped, with colors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A line of text that stands at one place for some time."""

    row: int
    text: str
    start: float
    end: float


def spans(frames: Sequence[Frame], end: float) -> Iterator[Span]:
    """Each line for as long as it stands unchanged; empty ones are left out."""
    for row in range(len(frames[0].lines)):
        start, text = 0.0, ""
        for frame in (*frames, Frame(at_seconds=end, lines=("",) * len(frames[0].lines))):
            if frame.lines[row] != text:
                if text:
                    yield Span(row=row, text=text, start=start, end=frame.at_seconds)
                start, text = frame.at_seconds, frame.lines[row]


def svg(frames: Sequence[Frame], columns: int, title: str) -> str:
    """The picture: a terminal that plays the frames again and again."""
    seconds = frames[-1].at_seconds + HOLD_SECONDS
    width = round(columns * CHARACTER_PIXELS) + 2 * MARGIN
    height = len(frames[0].lines) * LINE_PIXELS + 2 * MARGIN
    shown = "\n".join(_shown(span, seconds) for span in spans(frames, seconds))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<title>{escape(title)}</title>
<rect width="100%" height="100%" rx="8" fill="#1c2128"/>
<g font-family="ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="14"
 fill="#cdd9e5" xml:space="preserve">
{shown}
</g>
</svg>
"""


def _shown(span: Span, seconds: float) -> str:
    times = [span.start / seconds, min(span.end / seconds, 1.0)]
    values, moments = ["hidden", "visible", "hidden"], [0.0, *times]
    if times[0] == 0.0:
        values, moments = values[1:], moments[1:]
    if times[1] == 1.0:
        values, moments = values[:-1], moments[:-1]
    y = MARGIN + (span.row + 1) * LINE_PIXELS - 5
    listed = ";".join(f"{moment:.4f}".rstrip("0").rstrip(".") for moment in moments)
    return (
        f'<text x="{MARGIN}" y="{y}" visibility="hidden">{span.text}'
        f'<animate attributeName="visibility" values="{";".join(values)}" keyTimes="{listed}" '
        f'calcMode="discrete" dur="{seconds:.2f}s" repeatCount="indefinite"/></text>'
    )
