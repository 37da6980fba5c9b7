"""The workload of a trial: which model it trains on which data, and how."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from numbers import Real
from typing import Annotated

from dpbench.specs.settings import (
    Choice,
    NameWithOptions,
    PositiveNumber,
    Setting,
    Switch,
    Text,
    WholeNumber,
    settings_of,
)

DTYPES = {
    "f32": "float32 as IEEE has it, also on GPUs that could do with less",
    "bf16": "bfloat16 where autocast takes it; parameters and gradients stay float32",
    "f16": "float16 where autocast takes it, with a loss scale (CUDA only)",
    "tf32": "float32 whose products keep 10 bits of the mantissa (CUDA only)",
}
DTYPE_NAMES = {
    **dict.fromkeys(("f32", "fp32", "float32"), "f32"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("f16", "fp16", "float16"), "f16"),
    "tf32": "tf32",
}
"""Every spelling of a dtype."""
COMPILE_MODES = ("none", "default", "reduce-overhead", "max-autotune")
"""Modes of torch.compile; "reduce-overhead" uses CUDA graphs."""
OPTIMIZERS = (
    *("sgd", "sgd-fused", "sgd-foreach", "adamw", "adamw-fused", "adamw-foreach"),
    *("adam", "adam-fused", "adam-foreach", "adadelta", "adadelta-foreach"),
)
"""torch's own; behind the dash the kernels, in place of those that torch would take."""
DEFAULT_OPTIMIZER = "sgd"
LR_RULES = ("none", "linear", "sqrt")


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadSpec:
    """The trained workload: model, data, precision and optimizer."""

    architecture: Annotated[
        str,
        Setting(
            options=("--arch",),
            common=True,
            elsewhere="--model --models --architecture --network -a -m",
            kind=NameWithOptions(),
            metavar="A,B",
            help="Model to train: a name from 'dpbench list', file.py:function or timm:NAME.",
            shown=str,
            apart=True,
            position=-2,
        ),
    ]
    """A name from `architectures/`, or "package.module:factory"."""
    dataset: str
    optimizer: Annotated[
        str,
        Setting(
            options=("--optimizers", "--optimizer"),
            elsewhere="--optim --opt",
            argument="optimizer",
            kind=Choice(OPTIMIZERS, "optimizer"),
            metavar="A,B",
            help="Optimizers; -fused and -foreach choose the kernels.",
            meaning="The optimizer; its kernels follow behind the dash if they were chosen.",
            shown=str,
            position=2,
        ),
    ] = DEFAULT_OPTIMIZER
    learning_rate: Annotated[
        float,
        Setting(
            options=("--lr", "--lrs"),
            elsewhere="--learning-rate --learning_rate",
            kind=PositiveNumber(),
            metavar="X,X",
            help="Learning rate.",
            shown=lambda rate: f"lr {rate:g}",
            position=3,
        ),
    ] = 0.01
    learning_rate_rule: str = "none"
    """Scaling of the learning rate with the samples behind an optimizer step; see
    TrialSpec.learning_rate and LR_RULES."""
    seed: Annotated[
        int,
        Setting(
            options=("--seed", "--seeds"),
            elsewhere="--random-seed",
            kind=WholeNumber(),
            metavar="N,N",
            help="Seed for weights and sample order; each seed is a row of its own.",
            shown=lambda seed: f"seed {seed}",
            position=9,
        ),
    ] = 0
    dtype: Annotated[
        str,
        Setting(
            options=("--dtypes", "--dtype"),
            elsewhere="--amp --fp16 --bf16 --mixed-precision",
            kind=Choice(DTYPE_NAMES, "dtype"),
            metavar="A,B",
            help="Dtype of the forward pass (autocast); parameters and gradients stay f32.",
            meaning="Number format of the products in forward and backward; parameters and "
            "gradients stay float32.",
            shown=str,
            position=1,
        ),
    ] = "f32"
    """Dtype of the products in forward and backward; see DTYPES."""
    compile: Annotated[
        str,
        Setting(
            options=("--compile",),
            elsewhere="--torch-compile",
            kind=Choice(COMPILE_MODES, "mode of compiling"),
            metavar="A,B",
            help="Mode of torch.compile; reduce-overhead uses CUDA graphs.",
            meaning="Mode of torch.compile.",
            shown=lambda mode: "compiled" if mode == "default" else mode,
            position=1,
        ),
    ] = "none"
    """Mode of torch.compile, or "none"."""
    channels_last: Annotated[
        bool,
        Setting(
            options=("--channels-last",),
            kind=Switch(),
            metavar="no,yes",
            help="Use the channels-last (NHWC) memory format.",
            meaning="Whether images are in the channels-last (NHWC) memory format.",
            shown=lambda _: "channels-last",
            position=1,
        ),
    ] = False
    """Images lie in memory with the channels of a pixel together."""
    checkpoint_activations: Annotated[
        bool,
        Setting(
            options=("--checkpoint-activations",),
            elsewhere="--gradient-checkpointing --activation-checkpointing",
            kind=Switch(),
            metavar="no,yes",
            help="Recompute activations in the backward pass to save memory.",
            meaning="Whether activations are recomputed in the backward pass.",
            shown=lambda _: "recomputing",
            position=1,
        ),
    ] = False
    """Blocks keep their inputs only, and are computed again in the backward pass."""
    step: Annotated[
        str | None,
        Setting(
            options=("--step",),
            kind=Text(),
            none="dpbench's",
            metavar="FILE:NAME",
            help="Your own training step: file.py:function or package.module:function.",
            meaning="The user's own training step; missing if it is the one of dpbench.",
            shown=lambda _: "own step",
            position=6,
        ),
    ] = None
    """The user's own training step: "path/to/file.py:step" or "package.module:step"."""
    files_sha256: str | None = None
    """Hash of the user's files that architecture, step and dataset name, and of the training
    text."""

    def __post_init__(self) -> None:
        # 1 and 1.0 are equal, so they must not give two trial ids.
        object.__setattr__(self, "learning_rate", float(self.learning_rate))


WORKLOAD_SETTINGS = settings_of(WorkloadSpec)


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
    # Compared with the largest float, since a whole number may be larger and no float at all.
    if not (is_number and 0 < value <= sys.float_info.max):
        raise ValueError(f"{name} is {value!r}; expected a finite number above 0")
