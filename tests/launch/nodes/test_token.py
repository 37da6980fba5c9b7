"""Where a token may come from, and that nobody else can read it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpbench.errors import UsageError
from dpbench.launch.nodes.node import NodeRequest
from dpbench.launch.nodes.token import TOKEN_VARIABLE, new_token, read_token
from tests.launch.nodes.builders import TOKEN, request

SECRET = "0123456789abcdef"


def token_file(folder: Path, content: str = f"{SECRET}\n", mode: int = 0o600) -> str:
    path = folder / "token"
    path.write_text(content)
    path.chmod(mode)
    return str(path)


def test_a_new_token_is_another_every_time_and_good_enough_to_be_given() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    for token in tokens:
        assert read_token(None, {TOKEN_VARIABLE: token}) == token
        assert token.isalnum()


def test_the_file_and_the_environment_say_the_same_or_one_of_them_is_there(tmp_path: Path) -> None:
    path = token_file(tmp_path)
    assert read_token(None, {}) is None
    assert read_token(None, {TOKEN_VARIABLE: f"{SECRET}\n"}) == SECRET
    assert read_token(path, {}) == SECRET
    assert read_token(path, {TOKEN_VARIABLE: SECRET}) == SECRET
    with pytest.raises(UsageError, match="hold different tokens"):
        read_token(path, {TOKEN_VARIABLE: SECRET + "x"})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = token_file(tmp_path, mode=mode)
    with pytest.raises(UsageError, match=f"other users can read it.*chmod 600 {path}"):
        read_token(path, {})


def test_what_is_no_file_is_refused_and_nobody_waits_for_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path, words in (
        (pipe, "pipe is a pipe; expected a regular file"),
        (tmp_path, "is a folder; expected a regular file"),
        (Path("/dev/zero"), "is a device; expected a regular file"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(UsageError, match=words):
            read_token(str(path), {})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "0 characters; expected 16 to 1024"),
        ("tooshort", "8 characters"),
        ("z" * 2000, "expected 16 to 1024"),
        (f"{SECRET}\n{SECRET}", "in one line"),
        (f"{SECRET}\x1b[2J", "letters and digits"),
        (f"{SECRET} {SECRET}", "letters and digits"),
    ],
)
def test_a_token_that_is_none_is_refused_and_not_shown(
    tmp_path: Path, content: str, words: str
) -> None:
    for file, environ in ((token_file(tmp_path, content), {}), (None, {TOKEN_VARIABLE: content})):
        with pytest.raises(UsageError, match=words) as raised:
            read_token(file, environ)
        assert SECRET not in str(raised.value)


def test_nothing_that_is_printed_holds_it() -> None:
    asked: NodeRequest = request(1)
    assert asked.token == TOKEN
    assert TOKEN not in repr(asked)
