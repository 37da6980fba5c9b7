"""MNIST is read from files that fit together, and downloaded whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from dpbench.data import mnist
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


def test_a_file_is_decoded_compressed_or_not_and_damage_is_found(tmp_path: Path) -> None:
    path, plain = tmp_path / "named.gz", idx_bytes(ARRAY)
    packed = gzip.compress(plain)
    for content in (plain, packed):
        path.write_bytes(content)
        assert np.array_equal(mnist.decode(mnist.read_content(path), path), ARRAY)
    path.write_bytes(packed[:-9])
    with pytest.raises(DataError, match=r"cannot read .*named.gz: "):
        mnist.read_content(path)
    for content in (b"", b"\0\0\x0d\x03rest", plain[:10], plain[:-1], plain * 2):
        with pytest.raises(DataError, match="is damaged, or no IDX file"):
            mnist.decode(content, path)


def test_images_and_labels_are_read_and_normalised(tmp_path: Path) -> None:
    put_training_set(tmp_path, 12)
    inputs, targets, notes = mnist.read(tmp_path, "train")
    assert (inputs.shape, inputs.dtype) == ((12, 1, 28, 28), np.float32)
    assert (targets.tolist(), targets.dtype) == ([*range(10), 0, 1], np.int64)
    assert inputs[0].max() == pytest.approx((0 - 0.1307) / 0.3081, rel=1e-5)
    assert inputs[1].min() == pytest.approx((1 - 0.1307) / 0.3081, rel=1e-5)
    assert "these 12 samples are not the published MNIST" in notes[0]


def test_missing_files_are_named_with_what_needs_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{TRAIN_IMAGES}\[.gz\] and {TRAIN_LABELS}\[.gz\]"):
        mnist.read(None, "train")
    put(tmp_path, TRAIN_IMAGES, idx_bytes(images(3)))
    with pytest.raises(DataError, match=rf"expected {TRAIN_LABELS}.*--data digits or --data synth"):
        mnist.read(tmp_path, "train")


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    for pictures, digits, message in (
        (images(3), labels(4), r"got shapes \(3, 28, 28\) and \(4,\); expected as many images"),
        (images(2)[:0], labels(0), r"got shapes \(0, 28, 28\) and \(0,\)"),
        (images(3)[:, :14], labels(3), r"got shapes \(3, 14, 28\) and"),
        (images(3), labels(3) + 8, "got label 10; expected digits 0–9"),
        (labels(3), images(3), "expected as many images of 28×28 pixels as labels"),
    ):
        put(tmp_path, TRAIN_IMAGES, idx_bytes(pictures))
        put(tmp_path, TRAIN_LABELS, idx_bytes(digits))
        with pytest.raises(DataError, match=message):
            mnist.read(tmp_path, "train")


@pytest.fixture
def content(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Four small files, which stand for the published ones."""
    files: dict[str, bytes] = {}
    for names in mnist.PUBLISHED.values():
        images_name, labels_name = names
        files |= {images_name: idx_bytes(images(4)), labels_name: idx_bytes(labels(4))}
        for name in names:
            monkeypatch.setitem(names, name, hashlib.md5(files[name]).hexdigest())
    return files


def test_published_files_are_downloaded_once_and_give_no_note(
    tmp_path: Path, content: dict[str, bytes]
) -> None:
    said: list[str] = []
    mirror, data = tmp_path / "mirror", tmp_path / "data"
    mirror.mkdir()
    environ = {mnist.SOURCE_VARIABLE: mirror.as_uri()}
    with pytest.raises(DataError, match=r"cannot download MNIST .*No such file"):
        mnist.fetch(data, said.append, environ)
    put(mirror, f"{TRAIN_IMAGES}.gz", idx_bytes(images(4) + 1))
    with pytest.raises(DataError, match="is not the published file: got MD5"):
        mnist.fetch(data, said.append, environ)
    assert not [*data.glob("*.gz")]
    for name, published in content.items():
        put(mirror, f"{name}.gz", published)
    said.clear()
    for _ in range(2):
        mnist.fetch(data, said.append, environ)
    assert len(said) == 4
    assert said[0] == f"downloading {mirror.as_uri()}/{TRAIN_IMAGES}.gz to {data}"
    assert mnist.read(data, "train")[2] == ()
