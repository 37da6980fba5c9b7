"""The size of a text model: numbers that its options may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from . import _options
from ._synthetic_text import ALPHABET


@dataclass(frozen=True, kw_only=True, slots=True)
class TextSize:
    """Size of a transformer over tokens."""

    layers: int
    width: int
    heads: int
    context: int
    """Number of tokens in a sequence."""
    vocabulary: int


def text_size(
    sizes: Mapping[str, TextSize],
    size: str,
    *,
    least_vocabulary: int = ALPHABET,
    **given: int | None,
) -> TextSize:
    """The named size, with the given numbers in place of its own.

    Raises ValueError for a size that no model can have.
    """
    _options.expect_one_of("size", size, sizes)
    numbers = {name: number for name, number in given.items() if number is not None}
    chosen = replace(sizes[size], **numbers)
    _options.expect_at_least(1, **asdict(chosen))
    _options.expect_at_least(least_vocabulary, vocabulary=chosen.vocabulary)
    _options.expect_multiple("width", chosen.width, of=chosen.heads)
    return chosen
