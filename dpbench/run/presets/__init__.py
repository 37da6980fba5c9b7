"""Files of options that ship, each for a purpose: `dpbench sweep --preset NAME`, or `train`."""

from __future__ import annotations

from pathlib import Path

from dpbench.errors import UnknownName

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The presets of `dpbench sweep`, from the shortest to the longest."""
    return ["quick", "ci", "full", "paper"]


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.toml"


def training_names() -> list[str]:
    """Presets of `dpbench train`."""
    return ["torch-ddp"]


def training_path(name: str) -> Path:
    return FOLDER / f"train-{name}.toml"


def find(name: str) -> Path:
    """The file of a preset of `dpbench sweep`; raises UsageError for an unknown name."""
    return path_of(_known(name, names()))


def find_training(name: str) -> Path:
    """The file of a preset of `dpbench train`; raises UsageError for an unknown name."""
    return training_path(_known(name, training_names()))


def _known(name: str, names: list[str]) -> str:
    if name not in names:
        raise UnknownName("value for --preset:", name, names)
    return name


def purpose(path: Path) -> str:
    """Purpose of a preset: the first line of its file, a comment."""
    first, _, _ = path.read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("#").strip()
