"""Handwritten digits as 28×28 images: those that come with dpbench, and MNIST.

The former, in files beside this one, are 1,797, which scikit-learn has too: 8×8 images of 17 gray
levels, the test set of the UCI "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak,
1998); `digits-licence.txt` has their license. A fifth of them is held out for tests.

MNIST (LeCun, Cortes and Burges, "The MNIST database of handwritten digits") is read from the user's
files, or downloaded.

All files are in the IDX format: two zero bytes, the type of the elements (8 is unsigned byte), the
number of dimensions, the dimensions as big-endian 32-bit integers, then the elements, the last
dimension fastest.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch.hub import download_url_to_file

from dpbench.data.datasets import Dataset, Splits
from dpbench.data.registry import MNIST_PLACE
from dpbench.errors import UsageError
from dpbench.messages import Say

DIGITS_FOLDER = Path(__file__).parent
EVERY = 5
"""Every fifth digit is held out."""
BRIGHTEST = 16
"""The gray level of full ink; 0 is paper."""
SIDE = 28
"""Side in pixels after resizing, as MNIST has it, so that both fit the same architectures."""
PUBLISHED = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546f",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbe",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6d",
}
"""The files of images and labels, for training and for tests, with 16 digits of their SHA-256."""
MNIST_MEAN = 0.1307
"""Mean of all pixels of the training images, scaled to [0, 1]."""
MNIST_DEVIATION = 0.3081
"""Standard deviation of the same pixels."""
MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist"
"""The mirror, which torchvision uses too."""
MIRROR_VARIABLE = "DPBENCH_MNIST_URL"
"""Environment variable that names another mirror."""


def read_digits() -> Splits:
    """1,442 training and 355 test samples, in their order: images, float32 (n, 1, 28, 28), and
    digits, int64 (n,).

    The images are scaled to [0, 1], resized bilinearly, and standardized with the mean (about
    0.305) and the standard deviation (about 0.325) of all pixels.
    """
    levels = read_idx(DIGITS_FOLDER / "digits-images-idx3-ubyte.gz")  # (1797, 8, 8)
    labels = read_idx(DIGITS_FOLDER / "digits-labels-idx1-ubyte.gz")
    planes = torch.from_numpy(levels / BRIGHTEST).unsqueeze(1)
    pixels = F.interpolate(planes, size=(SIDE, SIDE), mode="bilinear", align_corners=False).numpy()
    images = (pixels - pixels.mean()) / pixels.std()
    held_out = every_fifth(labels)
    train, test = (_dataset(images[chosen], labels[chosen]) for chosen in (~held_out, held_out))
    return Splits(train=train, test=test)


def every_fifth(targets: NDArray[np.integer]) -> NDArray[np.bool_]:
    """A mask, bool (n,), of every fifth sample of each class, in order.

    So every class has the same share of test samples, whatever the order, and they are always the
    same ones.
    """
    held_out = np.zeros(len(targets), dtype=np.bool_)
    for target in np.unique(targets):
        held_out[np.flatnonzero(targets == target)[EVERY - 1 :: EVERY]] = True
    return held_out


def _dataset(images: NDArray[Any], labels: NDArray[np.uint8]) -> Dataset:
    inputs, targets = images.astype(np.float32), labels.astype(np.int64)
    return Dataset(inputs=torch.from_numpy(inputs), targets=torch.from_numpy(targets))


def read_mnist(data_dir: Path | None) -> Splits:
    """Images, float32 (n, 1, 28, 28), standardized, and digits, int64 (n,).

    Raises UsageError if a file is missing or damaged.
    """
    missing = [n for n in PUBLISHED if data_dir is None or not (data_dir / n).is_file()]
    if data_dir is None or missing:
        where = "got no data folder" if data_dir is None else f"{data_dir} lacks files"
        raise UsageError(
            f"dataset 'mnist': {where}; expected {' and '.join(missing)} {MNIST_PLACE}; "
            "--data digits needs no files"
        )
    arrays = [read_idx(data_dir / name) for name in PUBLISHED]
    train, test = (
        _dataset(images[:, np.newaxis], labels) for images, labels in (arrays[:2], arrays[2:])
    )
    for images in (train.inputs, test.inputs):  # in place: 60,000 take 188 MB
        images.div_(255).sub_(MNIST_MEAN).div_(MNIST_DEVIATION)
    return Splits(train=train, test=test)


def download_mnist(folder: Path, say: Say) -> None:
    """Download those of the four files that `folder` lacks; make the folder.

    `say` is called with a message before each download. Raises UsageError for a file that cannot be
    fetched, or is not the published one.
    """
    mirror = os.environ.get(MIRROR_VARIABLE, MIRROR).rstrip("/")
    for name, sha256 in PUBLISHED.items():
        if (folder / name).is_file():
            continue
        say(f"downloading {mirror}/{name} to {folder}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            download_url_to_file(f"{mirror}/{name}", str(folder / name), sha256, progress=False)
        # RuntimeError: another SHA-256; HTTPException: an answer that is not HTTP.
        except (OSError, ValueError, RuntimeError, HTTPException) as error:
            raise UsageError(f"cannot download MNIST to {folder}: {error}") from None


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in a gzip-compressed IDX file of unsigned bytes; raises UsageError."""
    try:
        content = gzip.decompress(path.read_bytes())
        if content[:3] != b"\0\0\x08":
            raise ValueError(f"it begins with the bytes {content[:3].hex(' ')}")
        shape = struct.unpack_from(f">{content[3]}I", content, 4)
        elements = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * len(shape))
        return elements.reshape(shape)
    except (OSError, EOFError, zlib.error, ValueError, IndexError, struct.error) as error:
        raise UsageError(
            f"cannot read {path}: {error}; expected a gzip-compressed IDX file of unsigned bytes"
        ) from error
