from __future__ import annotations

import gzip
import hashlib
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dpbench.data import mnist, mnist_files
from dpbench.errors import DataError
from tests.data.mnist_folder import (
    TRAIN_IMAGES,
    TRAIN_LABELS,
    idx_bytes,
    images,
    labels,
    put,
    put_training_set,
)

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
WHERE = Path("some-file")


def test_an_array_is_decoded_with_its_shape() -> None:
    assert np.array_equal(mnist.decode(idx_bytes(ARRAY), 3, WHERE), ARRAY)


def test_the_byte_order_and_the_header_are_those_of_the_format() -> None:
    content = bytes.fromhex("00000801 00000002 07ff")
    assert mnist.decode(content, 1, WHERE).tolist() == [7, 255]


@pytest.mark.parametrize(
    ("content", "got"),
    [(b"", "none"), (b"\x00\x00\x0d\x03rest", "00000d03"), (idx_bytes(ARRAY[0]), "00000802")],
)
def test_a_wrong_magic_number_is_told_with_the_right_one(content: bytes, got: str) -> None:
    with pytest.raises(DataError, match=f"some-file .* got the first bytes {got}, .* 00000803"):
        mnist.decode(content, 3, WHERE)


def test_a_header_that_is_cut_off_is_told() -> None:
    with pytest.raises(DataError, match="got 10 B, expected a header of 16 B"):
        mnist.decode(idx_bytes(ARRAY)[:10], 3, WHERE)


@pytest.mark.parametrize(
    ("content", "got"), [(idx_bytes(ARRAY)[:-1], "39"), (idx_bytes(ARRAY) * 2, "more than 40")]
)
def test_a_wrong_length_is_told_with_the_right_one(content: bytes, got: str) -> None:
    with pytest.raises(DataError, match=f"got {got} B, expected 40 B for 2 × 3 × 4 elements"):
        mnist.decode(content, 3, WHERE)


@pytest.mark.parametrize("name", ["plain", "named.gz"])
def test_the_content_tells_whether_a_file_is_compressed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(idx_bytes(ARRAY))
    assert mnist.read_content(path, 3) == idx_bytes(ARRAY)
    path.write_bytes(gzip.compress(idx_bytes(ARRAY)))
    assert mnist.read_content(path, 3) == idx_bytes(ARRAY)


@pytest.mark.parametrize("damage", [slice(0, -9), slice(0, 12)])
def test_a_truncated_gzip_file_is_damaged(tmp_path: Path, damage: slice) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(idx_bytes(ARRAY))[damage])
    with pytest.raises(DataError, match=r"labels\.gz is damaged: .*expected a whole gzip file"):
        mnist.read_content(path, 3)


def test_a_gzip_file_with_a_flipped_bit_is_damaged(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(idx_bytes(ARRAY)))
    content[-6] ^= 1
    path = tmp_path / "labels.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        mnist.read_content(path, 3)


def test_a_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*: No such file"):
        mnist.read_content(tmp_path / "absent", 3)


def test_no_more_is_unpacked_than_the_header_announces(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    bomb = idx_bytes(ARRAY) + bytes(2**28)
    path.write_bytes(gzip.compress(bomb, compresslevel=1))
    tracemalloc.start()
    content = mnist.read_content(path, 3)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert content == idx_bytes(ARRAY) + b"\0"
    assert peak_bytes < 2**22
    with pytest.raises(DataError, match="got more than 40 B, expected 40 B"):
        mnist.decode(content, 3, path)


def test_a_header_that_announces_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(ARRAY)[:4] + b"\xff" * 12)
    with pytest.raises(DataError, match=r"announces .* elements; expected at most 1,073,741,824"):
        mnist.read_content(path, 3)


def test_images_and_labels_are_read_and_normalised(tmp_path: Path) -> None:
    put_training_set(tmp_path, 12)
    inputs, targets, _ = mnist.read(tmp_path, "train")
    assert inputs.shape == (12, 1, 28, 28)
    assert inputs.dtype == np.float32
    assert targets.tolist() == [*range(10), 0, 1]
    assert targets.dtype == np.int64
    assert inputs[0].max() == pytest.approx((0 - 0.1307) / 0.3081, rel=1e-5)
    assert inputs[1].min() == pytest.approx((1 - 0.1307) / 0.3081, rel=1e-5)


def test_a_set_of_another_size_is_accepted_with_a_note_for_each_file(tmp_path: Path) -> None:
    put_training_set(tmp_path, 12)
    _, _, notes = mnist.read(tmp_path, "train")
    assert len(notes) == 2
    assert all("has 12 samples, not the 60000 of the published MNIST" in note for note in notes)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("dot", [False, True])
def test_both_spellings_are_found_compressed_or_not(tmp_path: Path, dot: bool, suffix: str) -> None:
    for name, array in ((TRAIN_IMAGES, images(3)), (TRAIN_LABELS, labels(3))):
        spelling = name.replace("-idx", ".idx") if dot else name
        put(tmp_path, spelling + suffix, idx_bytes(array))
    inputs, targets, _ = mnist.read(tmp_path, "train")
    assert (len(inputs), targets.tolist()) == (3, [0, 1, 2])


def test_the_test_split_has_files_of_its_own(tmp_path: Path) -> None:
    put_training_set(tmp_path, 12)
    put(tmp_path, "t10k-images-idx3-ubyte", idx_bytes(images(2)))
    put(tmp_path, "t10k-labels-idx1-ubyte", idx_bytes(labels(2)))
    inputs, _, notes = mnist.read(tmp_path, "test")
    assert len(inputs) == 2
    assert "not the 10000" in notes[0]


def test_no_data_folder_tells_how_to_give_one_and_what_needs_none() -> None:
    with pytest.raises(DataError, match=r"--data-dir.*--data digits or --data synthetic") as error:
        mnist.read(None, "train")
    assert f"{TRAIN_IMAGES}[.gz] and {TRAIN_LABELS}[.gz]" in str(error.value)


def test_missing_files_are_named_with_the_folder_to_put_them_in(tmp_path: Path) -> None:
    put(tmp_path, TRAIN_IMAGES, idx_bytes(images(3)))
    with pytest.raises(DataError) as error:
        mnist.read(tmp_path, "train")
    message = str(error.value)
    assert f"{tmp_path} lacks {TRAIN_LABELS}[.gz]; put" in message
    assert TRAIN_IMAGES not in message
    assert "--data digits or --data synthetic" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("pictures", "digits", "message"),
    [
        (images(3), labels(4), "has 3 images but .* has 4 labels"),
        (images(2)[:0], labels(0), "has 0 images"),
        (images(3)[:, :14], labels(3), "images of 14×28 pixels; expected 28×28"),
        (images(3), labels(3) + 8, "has a label 10; expected digits 0–9"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(
    tmp_path: Path, pictures: NDArray[np.uint8], digits: NDArray[np.uint8], message: str
) -> None:
    put(tmp_path, TRAIN_IMAGES, idx_bytes(pictures))
    put(tmp_path, TRAIN_LABELS, idx_bytes(digits))
    with pytest.raises(DataError, match=message):
        mnist.read(tmp_path, "train")


def test_swapped_files_are_refused_by_their_magic_number(tmp_path: Path) -> None:
    put(tmp_path, TRAIN_IMAGES, idx_bytes(labels(3)))
    put(tmp_path, TRAIN_LABELS, idx_bytes(images(3)))
    with pytest.raises(DataError, match="no IDX file of 1 dimensions"):
        mnist.read(tmp_path, "train")


def test_a_file_of_full_size_with_other_content_is_refused(tmp_path: Path) -> None:
    put(tmp_path, TRAIN_IMAGES, idx_bytes(images(3)))
    put(tmp_path, f"{TRAIN_LABELS}.gz", idx_bytes(labels(60_000)))
    with pytest.raises(
        DataError, match=r"is not the published train-labels.*got MD5 .*expected a25b"
    ):
        mnist.read(tmp_path, "train")


def test_a_file_with_the_published_content_gets_no_note() -> None:
    content = b"as published"
    published = mnist_files.PublishedFile(
        name="labels", samples=7, content_md5=hashlib.md5(content).hexdigest()
    )
    assert mnist_files.verify(published, Path("labels"), content, 7) is None
    with pytest.raises(DataError, match="is not the published labels"):
        mnist_files.verify(published, Path("labels"), content + b"!", 7)
