"""Parts of specifications: shares of samples, the rule of the learning rate, places on hosts,
communication hooks, names and differences."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from itertools import groupby
from numbers import Real
from typing import Literal

from dpbench import units
from dpbench.codec import encode
from dpbench.errors import UsageError

WIRE_SHARES = {"none": 1.0, "bf16": 0.5, "powersgd": None, "bf16-feedback": 0.5}
"""Bytes that travel ÷ bytes of float32 gradients, by communication hook: bfloat16, torch's or with
error feedback, or matrices of low rank, whose bytes depend on the shapes of the gradients."""


def split(total: int, shares: Sequence[float], *, least: int = 1) -> tuple[int, ...]:
    """`total` samples in proportion to `shares`: each at least `least`, together exactly `total`.

    By the largest remainder: everybody gets the whole part of its due, and what is left goes to
    those who miss most, the earlier ones first. With equal shares the sizes differ by one at most.

    Raises:
        UsageError: a share that is not finite and above 0, or too few samples.
    """
    check(shares)
    if total < least * len(shares):
        raise UsageError(
            f"got {units.counted(total, 'sample')} for {units.counted(len(shares), 'rank')}; "
            "expected at least one for each; take more samples or fewer ranks"
        )
    whole = sum(shares)
    due = [total * share / whole for share in shares]
    sizes = [max(least, math.floor(part)) for part in due]
    missing = sorted(range(len(due)), key=lambda i: sizes[i] - due[i])
    for chosen in missing[: max(0, total - sum(sizes))]:
        sizes[chosen] += 1
    while sum(sizes) > total:  # the least gave some more than their due
        above = (i for i, size in enumerate(sizes) if size > least)
        sizes[max(above, key=lambda i: sizes[i] - due[i])] -= 1
    return tuple(sizes)


def split_evenly(total: int, parts: int) -> tuple[int, ...]:
    """`split` with equal shares, where the last parts may get nothing."""
    return split(total, (1.0,) * parts, least=0)


def shares_by_speed(samples_per_second: Sequence[float]) -> tuple[float, ...]:
    """Shares with which ranks of these speeds end a step together; their sum is 1.

    The speeds are those of each rank alone, without waiting for others: samples ÷ seconds of its
    own forward and backward passes.
    """
    check(samples_per_second, "speeds in samples/s")
    whole = sum(samples_per_second)
    return tuple(speed / whole for speed in samples_per_second)


def check(shares: Sequence[float], what: str = "shares") -> None:
    """Raises UsageError unless there is at least one and all are finite and above 0."""
    if not shares or not all(math.isfinite(share) and share > 0 for share in shares):
        written = ", ".join(str(share) for share in shares) or "none"
        raise UsageError(f"{what}: got {written}; expected a finite number above 0 for each rank")


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


Placement = Literal["pack", "spread"]
PLACEMENTS = ("pack", "spread")
LONGEST_LISTED = 3
"""So many hosts alike in a row are listed one by one: "2+2+2", but "4×2"."""


def placed(group_size: int, offered: Sequence[int], placement: Placement) -> tuple[int, ...]:
    """How many of a group's replicas each host gets, without the hosts that get none.

    Raises ValueError if the hosts offer fewer.
    """
    if not 1 <= group_size <= sum(offered):
        raise ValueError(f"{group_size} replicas on hosts that offer {sum(offered)}")
    counts = [0] * len(offered)
    for _ in range(group_size):
        free = [host for host, count in enumerate(counts) if count < offered[host]]
        host = free[0] if placement == "pack" else min(free, key=counts.__getitem__)
        counts[host] += 1
    return tuple(count for count in counts if count)


def on_hosts(nodes: Sequence[int]) -> str:
    """Writes " (2+1 hosts)" behind a group size, " (16×8 hosts)" where many are alike; "" for a
    group on one host."""
    return f" ({host_counts(nodes)} hosts)" if nodes else ""


def host_counts(nodes: Sequence[int]) -> str:
    """Replicas host by host: "2+1"."""
    words = []
    for count, alike in groupby(nodes):
        hosts = len([*alike])
        words += [f"{hosts}×{count}"] if hosts > LONGEST_LISTED else [str(count)] * hosts
    return "+".join(words)


def series_name(implementation: str, backend: str | None) -> str:
    """Name of a scaling curve: "ddp/gloo"; a backend that adds no information is left out."""
    return implementation if backend in (None, "none", "threads") else f"{implementation}/{backend}"


def differing_fields(ours: object, theirs: object) -> list[str]:
    """Lists "name: theirs -> ours" for every field in which two specifications differ."""
    differences = []
    for field in fields(ours):  # type: ignore[arg-type]
        mine, other = getattr(ours, field.name), getattr(theirs, field.name)
        if is_dataclass(mine):
            differences += differing_fields(mine, other)
        elif mine != other:
            differences.append(f"{field.name}: {encode(other)!r} -> {encode(mine)!r}")
    return differences
