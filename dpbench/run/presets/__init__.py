"""Files of options that ship, each for a purpose: `dpbench sweep --preset NAME`, or `train`."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """From the shortest sweep to the longest."""
    return ["quick", "ci", "full", "paper"]


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.toml"


def training_names() -> list[str]:
    """Presets of `dpbench train`."""
    return ["torch-ddp"]


def training_path(name: str) -> Path:
    return FOLDER / f"train-{name}.toml"


def purpose(path: Path) -> str:
    """Purpose of a preset: the first line of its file, a comment."""
    first, _, _ = path.read_text().partition("\n")
    return first.removeprefix("#").strip()
