"""The kinds of values that options take, from text and from Python."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest

from dpbench.errors import UsageError
from dpbench.options.model import Options, Panel
from dpbench.options.reading import read_options, read_value
from dpbench.options.types import (
    ArchitectureList,
    Code,
    CommaList,
    Count,
    Duration,
    Gpus,
    Megabytes,
    Number,
    Percent,
    Positive,
    one_of,
    word_for_none,
)

Size = Count | Literal["max"]
DtypeName = Annotated[str, one_of({"f32": "f32", "fp32": "f32", "bf16": "bf16"})]
Cap = Annotated[Megabytes | None, *word_for_none("bucket_cap_mb")]

GOOD = [
    (Count, "8", 8),
    (Count, " 8 ", 8),
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
    (Gpus, "1,0,1", (1, 0)),
    (DtypeName, "fp32", "f32"),
    (Duration, "1e-05", 0.00001),
    (CommaList[Count], "64,32,64", (64, 32)),
    (CommaList[Count], 8, (8,)),
    (CommaList[Cap], "1,auto", (1.0, None)),
    (ArchitectureList, "mlp:width=4,layers=3,gpt", ("mlp:width=4,layers=3", "gpt")),
]
BAD = [
    (Count, "1.5", "expected a whole number"),
    (Count, "9" * 5000, "expected a whole number"),
    (Number, True, "expected a number"),
    (Size, "maxx", "got 'maxx'; expected a whole number, or 'max'"),
    (Positive, "nan", "expected a number"),
    (Percent, "100%", "expected a percentage"),
    (Duration, "0", "expected a duration"),
    (Duration, "800h", "at most 30 days"),
    (Gpus, [0, True], "expected a whole number"),
    (Gpus, True, "expected a number"),
    (DtypeName, "fp32x", "did you mean 'f32'? Expected one of f32, bf16"),
    (CommaList[Count], [], "at least one value"),
    (CommaList[Count], "8,,16", "no empty entry"),
    (CommaList[Count], "8,1_0", "got '1_0'; expected a number"),
    (Code, object, "expected a name in a file"),
    (Code, "__main__:Net", "ranks cannot import"),
]


@pytest.mark.parametrize(("kind", "given", "value"), GOOD)
def test_a_value_is_read_from_text_and_from_python(kind: Any, given: Any, value: Any) -> None:
    assert read_value("--it", kind, given) == value


@pytest.mark.parametrize(("kind", "given", "words"), BAD)
def test_an_odd_value_is_refused_with_what_was_expected(kind: Any, given: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_value("--it", kind, given)
    assert str(caught.value).startswith("--it: got ")
    assert words in str(caught.value)


class Some(Options):
    share: Percent | None = Panel.OPTIONS.option("A share.", "P%")
    gpus: Gpus | None = Panel.OPTIONS.option("GPUs.", "N")
    cap: Cap = Panel.OPTIONS.option("A cap.", default=1.0)
    time: Duration = Panel.OPTIONS.option("A time.", default=1.0)
    sizes: CommaList[Count] = Panel.OPTIONS.option("Sizes.", "N,N", default=(1,))
    draw: bool = Panel.OPTIONS.option("Draw.", default=True)


def test_what_was_given_is_typed_again_as_it_is_read() -> None:
    given = {"share": "12.34567%", "gpus": "0,", "cap": "auto", "time": "5m", "sizes": "1,2"}
    options = Some(**given, draw=False)
    words = options.command("sweep").words
    assert words == [
        *(
            "--share",
            "12.34567%",
            "--gpus",
            "0,",
            "--cap",
            "auto",
            "--time",
            "300",
            "--sizes",
            "1,2",
        ),
        "--no-draw",
    ]
    named = {
        name.removeprefix("--"): value
        for name, value in zip(words[:-1:2], words[1::2], strict=True)
    }
    assert Some(**named, draw=False) == options


def test_a_call_takes_every_spelling() -> None:
    found = read_options(Some, {"size": range(8, 10), "time": 8, "cap": None}, "call")
    assert found == Some(sizes=(8, 9), time=8.0)
    with pytest.raises(UsageError, match="given twice"):
        read_options(Some, {"size": 1, "sizes": 2}, "call")
    with pytest.raises(UsageError, match=r"argument of call: got 'seizes'; did you mean 'sizes'"):
        read_options(Some, {"seizes": 1}, "call")
