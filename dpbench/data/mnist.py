"""MNIST: 28×28 images of handwritten digits, from the user's files or downloaded.

LeCun, Cortes and Burges, "The MNIST database of handwritten digits". The files are in the IDX
format: two zero bytes, the type of the elements (8 is unsigned byte), the number of dimensions, the
dimensions as big-endian 32-bit integers, then the elements, the last dimension fastest.
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

from dpbench.data.registry import Split
from dpbench.errors import DataError
from dpbench.messages import Say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PUBLISHED: dict[Split, dict[str, str]] = {
    "train": {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546f",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbe",
    },
    "test": {
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6d",
    },
}
"""The files of the images and of the labels of each split, with 16 digits of their SHA-256."""
MEAN = 0.1307
"""Mean of all pixels of the training images, scaled to [0, 1]."""
STANDARD_DEVIATION = 0.3081
"""Standard deviation of the same pixels."""
SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist"
"""The mirror, which torchvision uses too."""
MNIST_PLACE = "in --data-dir, where dpbench train --download puts them"
"""Where the files are expected."""
SOURCE_VARIABLE = "DPBENCH_MNIST_URL"
"""Environment variable that names another mirror."""


def read_mnist(
    data_dir: Path | None, split: Split
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images, float32 (n, 1, 28, 28), standardized, and digits, int64 (n,).

    Raises DataError if a file is missing or damaged.
    """
    import numpy as np

    names = [*PUBLISHED[split]]
    missing = [n for n in names if data_dir is None or not (data_dir / n).is_file()]
    if data_dir is None or missing:
        where = "got no data folder" if data_dir is None else f"{data_dir} lacks files"
        raise DataError(
            f"dataset 'mnist': {where}; expected {' and '.join(missing)} {MNIST_PLACE}; "
            "--data digits needs no files"
        )
    images, labels = (read_idx(data_dir / name) for name in names)
    # In place: the training set takes 188 MB as float32.
    inputs = images[:, np.newaxis].astype(np.float32)
    inputs /= 255
    inputs -= MEAN
    inputs /= STANDARD_DEVIATION
    return inputs, labels.astype(np.int64)


def fetch(folder: Path, say: Say) -> None:
    """Download those of the four files that `folder` lacks; make the folder.

    `say` is called with a message before each download. Raises DataError for a file that cannot be
    fetched, or is not the published one.
    """
    from torch.hub import download_url_to_file

    source = os.environ.get(SOURCE_VARIABLE, SOURCE).rstrip("/")
    for name, sha256 in (PUBLISHED["train"] | PUBLISHED["test"]).items():
        if (folder / name).is_file():
            continue
        say(f"downloading {source}/{name} to {folder}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            download_url_to_file(f"{source}/{name}", str(folder / name), sha256, progress=False)
        # RuntimeError: another SHA-256; HTTPException: an answer that is not HTTP.
        except (OSError, ValueError, RuntimeError, HTTPException) as error:
            raise DataError(f"cannot download MNIST to {folder}: {error}") from None


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in a gzip-compressed IDX file of unsigned bytes; raises DataError."""
    import numpy as np

    try:
        content = gzip.decompress(path.read_bytes())
        if content[:3] != b"\0\0\x08":
            raise ValueError(f"it begins with the bytes {content[:3].hex(' ')}")
        shape = struct.unpack_from(f">{content[3]}I", content, 4)
        elements = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * len(shape))
        return elements.reshape(shape)
    except (OSError, EOFError, zlib.error, ValueError, IndexError, struct.error) as error:
        raise DataError(
            f"cannot read {path}: {error}; expected a gzip-compressed IDX file of unsigned bytes"
        ) from error
