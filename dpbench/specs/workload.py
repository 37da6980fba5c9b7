"""The workload: which model is trained on which data, and how; or the user's script."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from numbers import Real

COMPILE_MODES = ("none", "default", "reduce-overhead", "max-autotune")
"""Modes of torch.compile."""
GRAPHED_MODES = ("reduce-overhead", "max-autotune")
"""Modes that run a model in CUDA graphs, whose results the next step overwrites."""
OPTIMIZER_CLASSES = {"sgd": "SGD", "adamw": "AdamW", "adam": "Adam", "adadelta": "Adadelta"}
"""Names of classes in torch.optim."""
OPTIMIZERS = tuple(
    name + kernels
    for name in OPTIMIZER_CLASSES
    for kernels in ("", "-fused", "-foreach")
    if name + kernels != "adadelta-fused"  # torch has none
)
"""Optimizers; the part after the dash chooses the kernels, in place of torch's choice."""
DTYPE_NAMES = {
    **dict.fromkeys(("f32", "fp32", "float32"), "f32"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("f16", "fp16", "float16"), "f16"),
    "tf32": "tf32",
}
"""Every spelling of a dtype."""
ON_GPUS_ONLY = ("f16", "tf32")
"""Dtypes for CUDA only; f16 has a loss scale."""
LR_RULES = ("none", "linear", "sqrt")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadSpec:
    """The trained workload: model, data, precision and optimizer."""

    architecture: str
    """A name from `architectures/`, or "package.module:factory"; for a script, its name."""
    dataset: str
    """A name from the registry of datasets, or the user's function; "" for a script."""
    optimizer: str = "sgd"
    lr: float = 0.01
    lr_scaling: str = "none"
    """Scaling of the learning rate with the samples behind an optimizer step; see
    ParallelSpec.scaled_lr and LR_RULES."""
    seed: int = 0
    dtype: str = "f32"
    """Dtype of the products in forward and backward; see DTYPE_NAMES."""
    compile: str = "none"
    """Mode of torch.compile, or "none"."""
    script: tuple[str, ...] = ()
    """A training script with its arguments, ("train.py", "--lr", "1"), or as a module, ("-m",
    "package.train"). It runs its own training loop instead of dpbench's."""
    files_sha256: str | None = None
    """Hash of the user's files that architecture, dataset or script name, and of the training
    text."""


WORKLOAD_FIELDS = frozenset(field.name for field in fields(WorkloadSpec))


def scale_lr(base: float, ratio: float, rule: str) -> float:
    """The learning rate for a batch that is `ratio` times the one that `base` was chosen for.

    The ratio is that of the samples behind one optimizer step, accumulated ones included, not that
    of GPUs. The rules: "none", "linear" (Goyal et al. 2017, arXiv:1706.02677; for SGD, whose first
    epochs then want a warm-up that the caller provides) and "sqrt" (Krizhevsky 2014,
    arXiv:1404.5997; the usual choice for Adam). Raises ValueError for another rule, and for a base,
    ratio or result that is not a finite number above 0.
    """
    if rule not in LR_RULES:
        raise ValueError(f"rule is {rule!r}; expected one of {', '.join(LR_RULES)}")
    _check_finite("base", base)
    _check_finite("ratio", ratio)
    factors = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}
    scaled = base * factors[rule]
    _check_finite("the scaled learning rate", scaled)
    return scaled


def _check_finite(name: str, value: float) -> None:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and 0 < value < math.inf):
        raise ValueError(f"{name} is {value!r}; expected a finite number above 0")
