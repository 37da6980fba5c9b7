"""Text from records as it may stand on a page: whatever cannot be seen is made visible."""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but not tabs and line ends
    "\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069"  # what turns the direction of writing
    "\ud800-\udfff\ufffe\uffff]"  # what no encoding can hold
)


def visible(text: str) -> str:
    """The same text with a picture for each control character: "␛[31m", "�".

    What turns the direction of writing could make a name read as another, and lone surrogates
    cannot be written to a file; both become U+FFFD. A carriage return before a line end goes.
    """
    return _UNSEEN.sub(_picture, text.replace("\r\n", "\n"))


def _picture(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else "\N{REPLACEMENT CHARACTER}"
