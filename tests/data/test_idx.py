from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from dpbench.data import idx
from dpbench.errors import DataError
from tests.data.mnist_folder import idx_bytes

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
WHERE = Path("some-file")


def test_an_array_is_decoded_with_its_shape() -> None:
    assert np.array_equal(idx.decode(idx_bytes(ARRAY), 3, WHERE), ARRAY)


def test_the_byte_order_and_the_header_are_those_of_the_format() -> None:
    content = bytes.fromhex("00000801 00000002 07ff")
    assert idx.decode(content, 1, WHERE).tolist() == [7, 255]


@pytest.mark.parametrize(
    ("content", "got"),
    [(b"", "none"), (b"\x00\x00\x0d\x03rest", "00000d03"), (idx_bytes(ARRAY[0]), "00000802")],
)
def test_a_wrong_magic_number_is_told_with_the_right_one(content: bytes, got: str) -> None:
    with pytest.raises(DataError, match=f"some-file .* got the first bytes {got}, .* 00000803"):
        idx.decode(content, 3, WHERE)


def test_a_header_that_is_cut_off_is_told() -> None:
    with pytest.raises(DataError, match="got 10 B, expected a header of 16 B"):
        idx.decode(idx_bytes(ARRAY)[:10], 3, WHERE)


@pytest.mark.parametrize(
    ("content", "got"), [(idx_bytes(ARRAY)[:-1], "39"), (idx_bytes(ARRAY) * 2, "more than 40")]
)
def test_a_wrong_length_is_told_with_the_right_one(content: bytes, got: str) -> None:
    with pytest.raises(DataError, match=f"got {got} B, expected 40 B for 2 × 3 × 4 elements"):
        idx.decode(content, 3, WHERE)


@pytest.mark.parametrize("name", ["plain", "named.gz"])
def test_the_content_tells_whether_a_file_is_compressed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(idx_bytes(ARRAY))
    assert idx.read_content(path, 3) == idx_bytes(ARRAY)
    path.write_bytes(gzip.compress(idx_bytes(ARRAY)))
    assert idx.read_content(path, 3) == idx_bytes(ARRAY)


@pytest.mark.parametrize("damage", [slice(0, -9), slice(0, 12)])
def test_a_truncated_gzip_file_is_damaged(tmp_path: Path, damage: slice) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(idx_bytes(ARRAY))[damage])
    with pytest.raises(DataError, match=r"labels\.gz is damaged: .*expected a whole gzip file"):
        idx.read_content(path, 3)


def test_a_gzip_file_with_a_flipped_bit_is_damaged(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(idx_bytes(ARRAY)))
    content[-6] ^= 1
    path = tmp_path / "labels.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        idx.read_content(path, 3)


def test_a_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*: No such file"):
        idx.read_content(tmp_path / "absent", 3)


def test_no_more_is_unpacked_than_the_header_announces(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    bomb = idx_bytes(ARRAY) + bytes(2**28)
    path.write_bytes(gzip.compress(bomb, compresslevel=1))
    tracemalloc.start()
    content = idx.read_content(path, 3)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert content == idx_bytes(ARRAY) + b"\0"
    assert peak_bytes < 2**22
    with pytest.raises(DataError, match="got more than 40 B, expected 40 B"):
        idx.decode(content, 3, path)


def test_a_header_that_announces_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(ARRAY)[:4] + b"\xff" * 12)
    with pytest.raises(DataError, match=r"announces .* elements; expected at most 1,073,741,824"):
        idx.read_content(path, 3)
