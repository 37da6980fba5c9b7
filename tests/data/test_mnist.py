from __future__ import annotations

import hashlib
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
