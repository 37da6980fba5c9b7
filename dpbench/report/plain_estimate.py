"""An estimate for programs: the same fields in every command's JSON."""

from __future__ import annotations

from typing import Any

from dpbench.analysis.estimate import Estimate
from dpbench.analysis.provenance import Kind


def plain_estimate(estimate: Estimate | None, kind: Kind | None = None) -> dict[str, Any] | None:
    """With where it comes from, if `kind` is given; None where nothing was measured."""
    if estimate is None:
        return None
    return {
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "unit": estimate.unit,
        "confidence": estimate.confidence,
        "sample_size": estimate.sample_size,
        "basis": estimate.basis,
        **({} if kind is None else {"kind": kind}),
    }


def with_ends(key: str, estimate: Estimate | None) -> dict[str, float | None]:
    """The value under `key`, its interval under `key`_low and `key`_high."""
    if estimate is None:
        return {key: None, f"{key}_low": None, f"{key}_high": None}
    return {key: estimate.value, f"{key}_low": estimate.low, f"{key}_high": estimate.high}
