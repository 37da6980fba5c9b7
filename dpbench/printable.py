"""Text from elsewhere, made safe to print: in one line, cut, and without control characters."""

from __future__ import annotations


def printable(text: str, longest: int) -> str:
    """The text with escapes for what a terminal would act upon; "…" where it is cut."""
    shown = text[: longest + 1]
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def one_line(text: str) -> str:
    """Text that cannot break a table or a terminal: no control characters, single spaces."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
