from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from dpbench.options.comm import MessageSizes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4B-1KiB", (4, 16, 64, 256, 1024)),
        ("4B-1KB", (4, 16, 64, 256, 1000)),
        ("8B-8B", (8,)),
        ("25MiB,4B,1KB", (4, 1000, 25 * 2**20)),
    ],
)
def test_a_range_holds_both_ends_and_a_list_rises(text: str, sizes: tuple[int, ...]) -> None:
    assert TypeAdapter(MessageSizes).validate_python(text) == sizes
