"""The kinds of values that options take, from text and from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from dpbench.options.types import (
    Choice,
    CommaList,
    Count,
    Duration,
    FilePath,
    Gpus,
    NameList,
    Number,
    OrWord,
    Percent,
    PositiveNumber,
    WholeNumber,
)

Dtype = Annotated[str, Choice({"f32": "f32", "fp32": "f32", "bf16": "bf16"})]
Positive = Annotated[float, PositiveNumber()]
Cap = Annotated[float | None, OrWord(PositiveNumber(most=1e6), "auto")]
Size = Annotated[int | str, OrWord(WholeNumber(least=1), "max", "max")]

GOOD = [
    (Count, "8", 8),
    (Count, " 8 ", 8),
    (Count, np.int64(8), 8),
    (Number, 0, 0),
    (Size, "max", "max"),
    (Positive, "1e-3", 0.001),
    (Positive, 2, 2.0),
    (Cap, "auto", None),
    (Cap, None, None),
    (Percent, "3 %", 0.03),
    (Duration, "5m", 300.0),
    (Duration, 90, 90.0),
    (Gpus, "2", 2),
    (Gpus, "0,", (0,)),
    (Gpus, [0, 1], (0, 1)),
    (FilePath, "a/b", Path("a/b")),
    (Dtype, "fp32", "f32"),
    (CommaList[Count], "8,16", (8, 16)),
    (CommaList[Count], "64,32,64", (64, 32)),
    (CommaList[Count], 8, (8,)),
    (CommaList[Count], np.array([8, 16]), (8, 16)),
    (CommaList[Count], (size for size in (4, 8)), (4, 8)),
    (CommaList[Cap], "1,auto", (1.0, None)),
    (NameList, "mlp:width=4,depth=3,gpt", ("mlp:width=4,depth=3", "gpt")),
]
BAD = [
    (Count, "0", "a whole number, 1 or more"),
    (Count, "1.5", "a whole number"),
    (Count, 2.0, "a whole number"),
    (Count, True, "a whole number"),
    (Count, "٣", "a whole number"),
    (Count, "1_0", "a whole number"),
    (Count, "9" * 5000, "a whole number"),
    (Number, "-1", "a whole number, 0 or more"),
    (Size, "maxx", "a whole number, 1 or more, or max"),
    (Positive, "nan", "a number above 0"),
    (Positive, "1e309", "a number above 0"),
    (Positive, 0, "a number above 0"),
    (Cap, "1e7", "up to 1,000,000"),
    (Percent, 0.03, "a percentage"),
    (Percent, "100%", "a percentage"),
    (Duration, "soon", "a duration"),
    (Duration, "0", "a duration"),
    (Duration, "800h", "at most 30 days"),
    (Gpus, "0,0", "distinct ids"),
    (Gpus, "0,x", "distinct ids"),
    (FilePath, "", "the current folder"),
    (Dtype, "fp32x", "did you mean 'f32'? Expected one of f32, bf16"),
    (CommaList[Count], "", "a comma-separated list"),
    (CommaList[Count], [], "at least one value"),
    (CommaList[Count], "8,,16", "no empty entry"),
]


@pytest.mark.parametrize(("kind", "given", "value"), GOOD)
def test_a_value_is_read_from_text_and_from_python(kind: Any, given: Any, value: Any) -> None:
    assert TypeAdapter(kind).validate_python(given) == value


@pytest.mark.parametrize(("kind", "given", "words"), BAD)
def test_an_odd_value_is_refused_with_what_was_expected(kind: Any, given: Any, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(given)
    assert words in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Percent, "3%", "3%"),
        (Percent, "99.5%", "99.5%"),
        (Duration, 300, "5m"),
        (Gpus, [0], "0,"),
        (Cap, None, "auto"),
        (FilePath, "a", "a"),
    ],
)
def test_what_is_written_is_read_back(kind: Any, value: Any, text: str) -> None:
    adapter = TypeAdapter(kind)
    read = adapter.validate_python(value)
    assert adapter.dump_python(read, mode="json") == text
    assert adapter.validate_python(text) == read
