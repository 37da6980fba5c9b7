"""How the learning rate follows the batch."""

from __future__ import annotations

import math
import sys
from numbers import Real

RULES = ("none", "linear", "sqrt")


def scale_lr(base: float, ratio: float, rule: str) -> float:
    """The learning rate for a batch that is `ratio` times the one that `base` was chosen for.

    The ratio is that of the samples behind one optimizer step, accumulated ones included, not that
    of GPUs. The rules: "none", "linear" (Goyal et al. 2017, arXiv:1706.02677; for SGD, whose first
    epochs then want a warm-up that the caller provides) and "sqrt" (Krizhevsky 2014,
    arXiv:1404.5997; the usual choice for Adam). Raises ValueError for another rule, and for a base,
    ratio or result that is not a finite number above 0.
    """
    if rule not in RULES:
        raise ValueError(f"rule is {rule!r}; expected one of {', '.join(RULES)}")
    _check("base", base)
    _check("ratio", ratio)
    factors = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}
    scaled = base * factors[rule]
    _check("the scaled learning rate", scaled)
    return scaled


def _check(name: str, value: float) -> None:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    # Compared with the largest float, since a whole number may be larger and no float at all.
    if not (is_number and 0 < value <= sys.float_info.max):
        raise ValueError(f"{name} is {value!r}; expected a finite number above 0")
