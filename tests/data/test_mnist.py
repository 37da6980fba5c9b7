"""MNIST is read from files that fit together, and downloaded whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dpbench.data import mnist
from dpbench.errors import DataError
from tests.data.mnist_folder import (
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    idx_bytes,
    images,
    labels,
    put,
    put_training_set,
)

ARRAY = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)


def test_an_array_is_decoded_by_the_format(tmp_path: Path) -> None:
    assert np.array_equal(mnist.decode(idx_bytes(ARRAY), tmp_path), ARRAY)
    assert mnist.decode(bytes.fromhex("00000801 00000002 07ff"), tmp_path).tolist() == [7, 255]


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\x0d\x03rest", idx_bytes(ARRAY)[:10], idx_bytes(ARRAY)[:-1], idx_bytes(ARRAY) * 2],
)
def test_a_damaged_array_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is damaged, or no IDX file"):
        mnist.decode(content, tmp_path)


def test_the_content_tells_whether_a_file_is_compressed(tmp_path: Path) -> None:
    path, packed = tmp_path / "named.gz", gzip.compress(idx_bytes(ARRAY))
    for content in (idx_bytes(ARRAY), packed):
        path.write_bytes(content)
        assert mnist.read_content(path) == idx_bytes(ARRAY)
    for damaged in (packed[:-9], packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"cannot read .*named.gz: "):
            mnist.read_content(path)
    with pytest.raises(DataError, match=r"cannot read .*No such file"):
        mnist.read_content(tmp_path / "absent")


def test_images_and_labels_are_read_and_normalised(tmp_path: Path) -> None:
    put_training_set(tmp_path, 12)
    inputs, targets, notes = mnist.read(tmp_path, "train")
    assert (inputs.shape, inputs.dtype) == ((12, 1, 28, 28), np.float32)
    assert (targets.tolist(), targets.dtype) == ([*range(10), 0, 1], np.int64)
    assert inputs[0].max() == pytest.approx((0 - 0.1307) / 0.3081, rel=1e-5)
    assert inputs[1].min() == pytest.approx((1 - 0.1307) / 0.3081, rel=1e-5)
    assert "these 12 samples are not the published MNIST" in notes[0]


def test_each_split_has_its_own_files_compressed_or_not(tmp_path: Path) -> None:
    put_training_set(tmp_path, 12)
    put(tmp_path, f"{TEST_IMAGES}.gz", idx_bytes(images(2)))
    put(tmp_path, TEST_LABELS, idx_bytes(labels(2)))
    assert len(mnist.read(tmp_path, "test")[0]) == 2


def test_missing_files_are_named_with_what_needs_none(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"{TRAIN_IMAGES}\[.gz\] and {TRAIN_LABELS}\[.gz\]"):
        mnist.read(None, "train")
    put(tmp_path, TRAIN_IMAGES, idx_bytes(images(3)))
    with pytest.raises(DataError, match=rf"expected {TRAIN_LABELS}.*--data digits or --data synth"):
        mnist.read(tmp_path, "train")


@pytest.mark.parametrize(
    ("pictures", "digits", "message"),
    [
        (images(3), labels(4), r"got shapes \(3, 28, 28\) and \(4,\); expected as many images"),
        (images(2)[:0], labels(0), r"got shapes \(0, 28, 28\) and \(0,\)"),
        (images(3)[:, :14], labels(3), r"got shapes \(3, 14, 28\) and"),
        (images(3), labels(3) + 8, "got label 10; expected digits 0–9"),
        (labels(3), images(3), "expected as many images of 28×28 pixels as labels"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(
    tmp_path: Path, pictures: NDArray[np.uint8], digits: NDArray[np.uint8], message: str
) -> None:
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


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "mirror").mkdir()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path / "mirror")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_published_files_are_downloaded_once_and_give_no_note(
    tmp_path: Path, content: dict[str, bytes], mirror: str
) -> None:
    said: list[str] = []
    environ = {mnist.SOURCE_VARIABLE: mirror}
    with pytest.raises(DataError, match=r"cannot download MNIST .*404"):
        mnist.fetch(tmp_path / "data", said.append, environ)
    for name, data in content.items():
        put(tmp_path / "mirror", f"{name}.gz", data)
    said.clear()
    for _ in range(2):
        mnist.fetch(tmp_path / "data", said.append, environ)
    assert len(said) == 4
    assert said[0].startswith(f"downloading {mirror}/{TRAIN_IMAGES}.gz to ")
    assert mnist.read(tmp_path / "data", "train")[2] == ()


def test_a_file_with_other_content_is_refused_and_gets_no_name(
    tmp_path: Path, content: dict[str, bytes], mirror: str
) -> None:
    for name in content:
        put(tmp_path / "mirror", f"{name}.gz", idx_bytes(images(4) + 1))
    with pytest.raises(DataError, match="is not the published file: got MD5"):
        mnist.fetch(tmp_path / "data", print, {mnist.SOURCE_VARIABLE: mirror})
    assert not [*(tmp_path / "data").glob("*.gz")]


def test_a_mirror_is_on_a_web_server(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"DPBENCH_MNIST_URL=file:///etc/: expected a web address"):
        mnist.fetch(tmp_path, print, {mnist.SOURCE_VARIABLE: "file:///etc"})
