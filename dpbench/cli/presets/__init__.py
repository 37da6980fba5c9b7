"""Files of options that ship, each for a purpose: `dpbench sweep --preset NAME`."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """From the shortest sweep to the longest."""
    return ["quick", "ci", "full", "paper"]


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.toml"


def purpose(name: str) -> str:
    """What it is for: the first line of the file, a comment."""
    first, _, _ = path_of(name).read_text().partition("\n")
    return first.removeprefix("#").strip()
