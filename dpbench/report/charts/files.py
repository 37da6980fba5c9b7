"""Charts as files, each written whole or not at all, and as elements of a page."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from dpbench.files import write_inside
from dpbench.report.markup import visible

PIXELS_PER_INCH = 130
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata without dates, so that equal data gives equal files."""


def stem_of(name: str, work: str) -> str:
    """Name of a chart's file before its suffix: "speedup", "speedup-gpt"."""
    words = re.sub("[^A-Za-z0-9_.=]+", "-", work).strip("-.")
    return f"{name}-{words}" if words else name


def write_figure(figure: Figure, path: Path) -> Path:
    """Writes it in the format that the suffix names; within `house_style`. Raises OSError."""
    image = path.suffix[1:].lower()
    content = io.BytesIO()
    figure.savefig(content, format=image, dpi=PIXELS_PER_INCH, metadata=_UNDATED.get(image, {}))
    return write_inside(path, content.getvalue())


def inline_svg(figure: Figure, *, salt: str) -> str:
    """The figure as an element of a page, whose paper shows through; within `house_style`.

    The ids that it refers to are its own, as all charts of a page share one space of ids and each
    has another `salt`.
    """
    text, nothing = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": salt}):
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return visible(text.getvalue()[text.getvalue().index("<svg") :])
