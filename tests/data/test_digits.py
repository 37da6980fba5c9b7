"""MNIST is read from its files, and downloaded whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from dpbench.data import digits
from dpbench.errors import UsageError
from tests.data.mnist_folder import TRAIN_IMAGES, TRAIN_LABELS, idx_bytes, images, put, put_mnist

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def test_a_file_is_decoded_and_damage_is_found(tmp_path: Path) -> None:
    plain = idx_bytes(ARRAY)
    assert np.array_equal(digits.read_idx(put(tmp_path, "whole.gz", plain)), ARRAY)
    for content in (b"", b"\0\0\x0d\x03rest", plain[:3], plain[:10], plain[:-1], plain * 2):
        with pytest.raises(UsageError, match=r"cannot read .*damaged.gz: .*; expected a gzip-comp"):
            digits.read_idx(put(tmp_path, "damaged.gz", content))
    path = tmp_path / "cut.gz"
    for content in (plain, gzip.compress(plain)[:-9]):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"cannot read .*cut.gz: "):
            digits.read_idx(path)


def test_images_and_labels_are_read_and_normalized(tmp_path: Path) -> None:
    put_mnist(tmp_path, 12, 4)
    train = digits.read_mnist(tmp_path).train
    assert (train.inputs.shape, train.inputs.dtype) == ((12, 1, 28, 28), torch.float32)
    assert (train.targets.tolist(), train.targets.dtype) == ([*range(10), 0, 1], torch.int64)
    assert train.inputs[0].max() == pytest.approx((0 - 0.1307) / 0.3081, rel=1e-5)
    assert train.inputs[1].min() == pytest.approx((1 - 0.1307) / 0.3081, rel=1e-5)


def test_missing_files_are_named_with_what_needs_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"{TRAIN_IMAGES} and {TRAIN_LABELS} and t10k-images"):
        digits.read_mnist(None)
    put(tmp_path, TRAIN_IMAGES, idx_bytes(images(3)))
    with pytest.raises(UsageError, match=rf"expected {TRAIN_LABELS}.*--data digits needs no"):
        digits.read_mnist(tmp_path)


def test_published_files_are_downloaded_once_and_others_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    mirror, data = tmp_path / "mirror", tmp_path / "data"
    mirror.mkdir()
    monkeypatch.setenv(digits.MIRROR_VARIABLE, mirror.as_uri())
    with pytest.raises(UsageError, match=r"cannot download MNIST .*No such file"):
        digits.download_mnist(data, said.append)
    put_mnist(mirror, 4, 4)
    with pytest.raises(UsageError, match="invalid hash value"):
        digits.download_mnist(data, said.append)
    assert not [*data.iterdir()]
    for name in digits.PUBLISHED:
        digest = hashlib.sha256((mirror / name).read_bytes()).hexdigest()
        monkeypatch.setitem(digits.PUBLISHED, name, digest[:16])
    said.clear()
    for _ in range(2):
        digits.download_mnist(data, said.append)
    assert len(said) == 4
    assert said[0] == f"downloading {mirror.as_uri()}/{TRAIN_IMAGES} to {data}"
    assert digits.read_mnist(data).train.targets.tolist() == [0, 1, 2, 3]
