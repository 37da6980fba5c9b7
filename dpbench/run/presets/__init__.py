"""Files of options that ship, each for a purpose: `dpbench sweep --preset NAME`, or `train`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dpbench.errors import UnknownName
from dpbench.messages import option_words

FOLDER = Path(__file__).parent
SWEEPS = {name: FOLDER / f"{name}.toml" for name in ("quick", "ci", "full", "paper")}
"""Presets of `dpbench sweep`, from the shortest to the longest."""
ON_GPUS = {"quick": FOLDER / "quick-gpus.toml"}
"""The files of presets that differ on a machine with GPUs."""
TRAININGS = {"torch-ddp": FOLDER / "train-torch-ddp.toml"}
"""Presets of `dpbench train`."""


def find(name: str, presets: Mapping[str, Path] = SWEEPS) -> Path:
    """The file of a preset for this machine; raises UsageError for an unknown name."""
    if name not in presets:
        raise UnknownName(option_words("preset"), name, [*presets])
    if name in ON_GPUS:
        import torch

        if torch.cuda.device_count() > 0:
            return ON_GPUS[name]
    return presets[name]


def find_training(name: str) -> Path:
    """The file of a preset of `dpbench train`; raises UsageError for an unknown name."""
    return find(name, TRAININGS)


def purpose(path: Path) -> str:
    """Purpose of a preset: the first line of its file, a comment."""
    first, _, _ = path.read_text(encoding="utf-8").partition("\n")
    return first.removeprefix("#").strip()
