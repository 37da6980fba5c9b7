from __future__ import annotations

from typing import Any

import pytest

from dpbench.analysis.simulation.same_gradients import require_same_gradients, require_trace_of
from dpbench.errors import UsageError
from tests.analysis.simulation.traces import GRADIENT_BYTES, gradient_trace


def test_traces_of_one_model_agree() -> None:
    require_same_gradients({"a": gradient_trace((0.01,)), "b": gradient_trace((0.02, 0.03))})
    require_same_gradients({"a": gradient_trace()})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": ("other", *(f"layer{i}" for i in range(1, 8)))}, "gradient of other"),
        ({"gradient_dtypes": ("bfloat16",) * 8}, "layer0 in bfloat16, expected float32"),
        ({"gradient_bytes": (4,) * 8}, "4 bytes of layer0, expected 1,048,576"),
        (
            {
                "parameters": ("layer0",),
                "gradient_bytes": (GRADIENT_BYTES,),
                "gradient_dtypes": ("float32",),
            },
            "got 1 gradients, expected 8",
        ),
    ],
)
def test_another_model_or_dtype_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match="trace of b is of another model or dtype than") as caught:
        require_same_gradients({"a": gradient_trace(), "b": gradient_trace(**changes)})
    assert words in str(caught.value)


def test_a_trace_must_reduce_as_many_bytes_as_the_sweep() -> None:
    require_trace_of(gradient_trace(), "a", 8 * GRADIENT_BYTES)
    with pytest.raises(UsageError, match="8,388,608 bytes, and a step reduces 4,194,304"):
        require_trace_of(gradient_trace(), "a", 4 * GRADIENT_BYTES)
