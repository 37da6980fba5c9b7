"""Writes charts atomically."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from matplotlib.figure import Figure

from dpbench.files import write_whole

PIXELS_PER_INCH = 130
_UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata without dates, so that equal data gives equal files."""


def stem_of(name: str, work: str) -> str:
    """Name of a chart's file before its suffix: "speedup", "speedup-gpt"."""
    if not work:
        return name
    stem = f"{name}-{re.sub('[^A-Za-z0-9_.=]+', '-', work).strip('-.')}"
    if re.fullmatch("[A-Za-z0-9_.=:, ]+", work):
        return stem
    # Paths that differ in a slash or a dash would have one file.
    return f"{stem}-{hashlib.sha256(work.encode()).hexdigest()[:6]}"


def write_figure(figure: Figure, path: Path) -> Path:
    """Writes it in the format that the suffix names; within `house_style`. Raises OSError."""
    return write_whole(path, partial(_save, figure, path.suffix[1:].lower()))


def svg_of(figure: Figure) -> str:
    """The content of an SVG file on transparent paper, which says nothing of itself."""
    text, nothing = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with any_letters():
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return text.getvalue()


@contextmanager
def any_letters() -> Iterator[None]:
    """A name may have letters that the font lacks: they show as boxes, which says enough."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        yield


def _save(figure: Figure, image: str, to: IO[bytes]) -> None:
    with any_letters():
        figure.savefig(to, format=image, dpi=PIXELS_PER_INCH, metadata=_UNDATED.get(image, {}))
