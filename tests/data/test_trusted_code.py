"""Who takes orders runs the code that his own command named, and no other."""

from __future__ import annotations

import pytest

from dpbench.data.trusted_code import NamedCode

MINE = NamedCode(architecture="mine.py:Net", dataset="mine.py:data", step="mine.py:step")
NONE = NamedCode(architecture="mlp", dataset=None)


def test_what_the_command_names_is_run() -> None:
    order = {"architecture": "mine.py:Net", "dataset": "mine.py:data", "step": "mine.py:step"}
    assert MINE.refusal(**order) is None


def test_options_of_a_function_are_no_code() -> None:
    shaped = "mine.py:Net:input_shape=3x8x8"
    assert MINE.refusal(architecture=shaped, dataset="mine.py:data") is None


def test_what_ships_with_dpbench_is_nobodys_code() -> None:
    for named in (MINE, NONE):
        assert named.refusal(architecture="vgg16", dataset="digits") is None
        assert named.refusal(architecture="mlp:width=64", dataset="synthetic") is None


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"architecture": "os:getpid"}, "--arch os:getpid, the command here for "),
        ({"architecture": "/tmp/evil.py:f"}, "--arch /tmp/evil.py:f, the command here for "),
        ({"architecture": "a/b"}, "expected path/to/file.py:factory"),
        ({"dataset": "os:getpid"}, "--data os:getpid, the command here for "),
        ({"dataset": "evil.py"}, "--data evil.py, the command here for "),
        ({"step": "os:getpid"}, "--step os:getpid, the command here for "),
        ({"architecture": "os:" + "x" * 900_000}, "…, the command here for "),
    ],
)
def test_other_code_is_refused_with_both_names(order: dict[str, str], words: str) -> None:
    for named in (MINE, NONE):
        refused = named.refusal(**{"dataset": "digits", **order})  # type: ignore[arg-type]
        assert refused is not None
        assert words in refused
        assert len(refused) < 500
