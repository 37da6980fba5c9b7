from __future__ import annotations

from typing import Any, Literal

import pytest

from dpbench.architecture.options import convert, options_of
from dpbench.errors import UnknownName, UsageError


def factory(
    *,
    depth: int = 18,
    rate: float = 0.1,
    bias: bool = True,
    size: Literal["small", "large"] = "small",
    width: int | None = None,
    label: str = "x",
) -> dict[str, Any]:
    return locals()


def untyped(depth=3, ratio=0.5, deep=False, anything=None):  # type: ignore[no-untyped-def]
    return locals()


def needs(classes: int, **more: Any) -> dict[str, Any]:
    return {"classes": classes, **more}


def tuples(shape: tuple[int, ...] = ()) -> None: ...


def late(depth: Undefined = 3) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_values_are_converted_by_the_annotations() -> None:
    typed = {
        "depth": "50", "rate": "1e-3", "bias": "False", "size": "large", "width": "7", "label": "3"
    }  # fmt: skip
    assert convert(typed, factory, "it") == {
        "depth": 50, "rate": 1e-3, "bias": False, "size": "large", "width": 7, "label": "3"
    }  # fmt: skip
    assert convert({"width": "none"}, factory, "it") == {"width": None}


def test_without_annotations_the_default_says_the_type_or_the_text_itself() -> None:
    typed = {"depth": "4", "ratio": "1", "deep": "true"}
    assert convert(typed, untyped, "it") == {"depth": 4, "ratio": 1.0, "deep": True}
    found = [convert({"anything": text}, untyped, "it")["anything"] for text in ("1", "1.5", "a")]
    assert found == [1, 1.5, "a"]
    assert convert({"classes": "3", "p": "true", "q": "0.5"}, needs, "it") == {
        "classes": 3,
        "p": True,
        "q": 0.5,
    }
    assert convert({"depth": "4"}, late, "it") == {"depth": 4}


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"depth": "x"}, "it: depth: got 'x', expected int$"),
        ({"bias": "1"}, "it: bias: got '1', expected true or false"),
        ({"size": "medium"}, "it: size: got 'medium', expected small or large"),
        ({"width": "wide"}, "it: width: got 'wide', expected int or none"),
        ({"dept": "3"}, "unknown option of it: 'dept'. Did you mean 'depth'"),
    ],
)
def test_a_value_of_another_type_and_an_unknown_option_are_usage_errors(
    typed: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        convert(typed, factory, "it")


def test_what_cannot_be_typed_what_is_missing_and_what_has_no_options_is_said() -> None:
    with pytest.raises(UsageError, match=r"expected tuple\[int, \.\.\.\], which cannot be typed"):
        convert({"shape": "3"}, tuples, "it")
    with pytest.raises(UsageError, match="the option classes is needed; add classes="):
        convert({}, needs, "it")
    with pytest.raises(UsageError, match="got option 'a', but it has no options"):
        convert({"a": "1"}, lambda: None, "it")
    with pytest.raises(UnknownName):
        convert({"a": "1"}, untyped, "it")


def test_options_are_listed_with_type_and_default() -> None:
    assert [str(option) for option in options_of(factory)] == [
        "depth=18 (int)",
        "rate=0.1 (float)",
        "bias=true (true or false)",
        "size=small (small or large)",
        "width=none (int or none)",
        "label=x (text)",
    ]
    assert [str(option) for option in options_of(needs)] == ["classes=required (int)"]
    assert options_of(int) == ()
