from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from dpbench.data import text
from dpbench.errors import DataError

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def _file(folder: Path, content: str | bytes) -> Path:
    path = folder / "text"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _as_text(tokens: np.ndarray) -> list[str]:
    return [bytes(row.astype(np.uint8)).decode() for row in tokens]


def test_a_text_is_cut_into_sequences_and_a_target_is_the_token_that_follows(
    tmp_path: Path,
) -> None:
    tokens, following, notes = text.read(_file(tmp_path, ALPHABET), 8)
    assert _as_text(tokens) == ["abcdefgh", "ijklmnop", "qrstuvwx"]
    assert _as_text(following) == ["bcdefghi", "jklmnopq", "rstuvwxy"]
    assert tokens.dtype == following.dtype == np.int64
    assert notes == (f"{tmp_path}/text: 26 B, 3 sequences of 8 tokens, SHA-256 71c480df93d6…",)


def test_the_last_fifth_is_held_out(tmp_path: Path) -> None:
    path = _file(tmp_path, ALPHABET)
    train, _, notes = text.read(path, 2, "train")
    test, following, silent = text.read(path, 2, "test")
    assert _as_text(train) == ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr", "st"]
    assert _as_text(test) == ["uv", "wx"]
    assert _as_text(following) == ["vw", "xy"]
    assert (len(notes), silent) == (1, ())


def test_what_is_no_text_or_too_short_is_refused(tmp_path: Path) -> None:
    for content, context, words in (
        (ALPHABET, 26, "got 26 B, expected at least 27, for 1 sequences of 26"),
        ("", 8, "got 0 B, expected at least 9"),
        ("abc\0def", 2, "expected UTF-8 text, got zero bytes"),
        ("café".encode("latin-1"), 2, "expected UTF-8 text, got unexpected end of data at 3"),
        (gzip.compress(ALPHABET.encode()), 2, "expected UTF-8 text"),
    ):
        with pytest.raises(DataError, match=words):
            text.read(_file(tmp_path, content), context)
    with pytest.raises(DataError, match="got 26 B, expected at least 27, for 2 sequences of 13"):
        text.read(_file(tmp_path, ALPHABET), 13, "train")
    for path, words in (
        (None, "got no file, expected one of text; give it with --data-dir"),
        (tmp_path / "missing", "missing: got no file, expected a file of text"),
        (tmp_path, "got a folder, expected a file of text"),
    ):
        with pytest.raises(DataError, match=words):
            text.read(path, 8)
