"""Charts as notebooks show them."""

from __future__ import annotations

import io
from functools import partial

from matplotlib.figure import Figure

from dpbench.report.charts.style import house_style


def shown_by_notebooks(figure: Figure) -> Figure:
    """The same figure, which a notebook shows as a picture.

    Without pyplot, which charts do not use, it would show its name; and pyplot is the program's own
    to set up.
    """
    setattr(figure, "_repr_png_", partial(_png, figure))  # noqa: B010 - a figure declares none
    return figure


def _png(figure: Figure) -> bytes:
    written = io.BytesIO()
    with house_style():
        figure.savefig(written, format="png")
    return written.getvalue()
