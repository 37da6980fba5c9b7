"""Training above the launcher: data-parallel training of a model from a function that makes it."""

from __future__ import annotations

from dpbench.training.dp_train import dp_train
from dpbench.training.settings import NonFinite, TrainingResult

__all__ = ["NonFinite", "TrainingResult", "dp_train"]
