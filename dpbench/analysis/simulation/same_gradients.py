"""A trace simulates the model that it was taken of, and no other."""

from __future__ import annotations

from collections.abc import Mapping

from dpbench.errors import UsageError
from dpbench.records import GradientTrace


def require_same_gradients(traces: Mapping[str, GradientTrace]) -> None:
    """Raises UsageError unless all traces, by what they are of, have the same gradients."""
    (first, expected), *others = traces.items()
    for label, trace in others:
        if (difference := _difference(trace, expected)) is not None:
            raise UsageError(
                f"the gradient trace of {label} is of another model or dtype than that of {first}: "
                f"{difference}; measure both with the same model in one sweep"
            )


def require_trace_of(trace: GradientTrace, label: str, reduced_bytes: int) -> None:
    """Raises UsageError unless a step with these gradients reduces so many bytes."""
    total = sum(trace.gradient_bytes)
    if total != reduced_bytes:
        raise UsageError(
            f"the gradient trace of {label} is of another model or dtype than the sweep's: its "
            f"gradients are {total:,} bytes, and a step reduces {reduced_bytes:,}; measure both in "
            "one sweep"
        )


def _difference(trace: GradientTrace, expected: GradientTrace) -> str | None:
    """The first that there is, in words."""
    for name, size, dtype, other, other_size, other_dtype in zip(
        trace.parameters,
        trace.gradient_bytes,
        trace.gradient_dtypes,
        expected.parameters,
        expected.gradient_bytes,
        expected.gradient_dtypes,
        strict=False,
    ):
        if name != other:
            return f"got the gradient of {name}, expected that of {other}"
        if dtype != other_dtype:
            return f"got {name} in {dtype}, expected {other_dtype}"
        if size != other_size:
            return f"got {size:,} bytes of {name}, expected {other_size:,}"
    got, wanted = len(trace.parameters), len(expected.parameters)
    return None if got == wanted else f"got {got} gradients, expected {wanted}"
