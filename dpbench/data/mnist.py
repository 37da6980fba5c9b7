"""MNIST: 28×28 images of handwritten digits, from the user's files or downloaded.

LeCun, Cortes and Burges, "The MNIST database of handwritten digits". The files are in the IDX
format: two zero bytes, the type of the elements (8 is unsigned byte), the number of dimensions, the
dimensions as big-endian 32-bit integers, then the elements, the last dimension fastest.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Mapping
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
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    },
    "test": {
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
}
"""The images and the labels of each split, with the MD5 of their decompressed content."""
MEAN = 0.1307
"""Mean of all pixels of the training images, scaled to [0, 1]."""
STANDARD_DEVIATION = 0.3081
"""Standard deviation of the same pixels."""
SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
"""The mirror, which torchvision uses too."""
SOURCE_VARIABLE = "DPBENCH_MNIST_URL"
"""Environment variable that names another mirror."""


def read(
    data_dir: Path | None, split: Split
) -> tuple[NDArray[np.float32], NDArray[np.int64], tuple[str, ...]]:
    """Images, float32 (n, 1, 28, 28), standardized; digits, int64 (n,); notes for the user.

    Files with other content than the published ones give a note. Raises DataError if a file is
    missing or damaged, or the two do not belong together.
    """
    import numpy as np

    paths = find(data_dir, split)
    contents = [read_content(path) for path in paths]
    images, labels = (decode(content, path) for content, path in zip(contents, paths, strict=True))
    if images.shape != (len(labels), 28, 28) or labels.ndim != 1 or not len(labels):
        raise DataError(
            f"{paths[0]} and {paths[1]}: got shapes {images.shape} and {labels.shape}; expected as "
            "many images of 28×28 pixels as labels; copy both files again"
        )
    if labels.max() > 9:
        raise DataError(f"{paths[1]}: got label {labels.max()}; expected digits 0–9")
    notes: tuple[str, ...] = ()
    if [_md5(content) for content in contents] != [*PUBLISHED[split].values()]:
        notes = (f"{paths[0].parent}: these {len(images)} samples are not the published MNIST",)
    # In place: the training set takes 188 MB as float32.
    inputs = images[:, np.newaxis].astype(np.float32)
    inputs /= 255
    inputs -= MEAN
    inputs /= STANDARD_DEVIATION
    return inputs, labels.astype(np.int64), notes


def find(data_dir: Path | None, split: Split) -> list[Path]:
    """The files of a split, images first; raises DataError naming the missing ones."""
    names = [*PUBLISHED[split]]
    found = [None if data_dir is None else _locate(data_dir, name) for name in names]
    missing = [f"{name}[.gz]" for name, path in zip(names, found, strict=True) if path is None]
    if missing:
        where = "got no data folder" if data_dir is None else f"{data_dir} lacks files"
        raise DataError(
            f"dataset 'mnist': {where}; expected {' and '.join(missing)} in the folder that "
            "--data-dir names; let dpbench train --download fetch them, or use --data digits or "
            "--data synthetic, which need no files"
        )
    return [path for path in found if path is not None]


def _locate(folder: Path, name: str) -> Path | None:
    paths = (folder / name, folder / f"{name}.gz")
    return next((path for path in paths if path.is_file()), None)


def _md5(content: bytes) -> str:
    # It identifies known files, and protects against nothing.
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def fetch(folder: Path, say: Say, environ: Mapping[str, str]) -> None:
    """Download those of the four files that `folder` lacks; make the folder.

    A file gets its name when its content is the published one. `say` is called with a message
    before each download; `environ` may name another mirror under SOURCE_VARIABLE.

    Raises DataError: a file cannot be fetched, or is not the published one.
    """
    from torch.hub import download_url_to_file

    source = environ.get(SOURCE_VARIABLE, SOURCE).rstrip("/") + "/"
    for name, md5 in (PUBLISHED["train"] | PUBLISHED["test"]).items():
        if _locate(folder, name) is not None:
            continue
        url, part = f"{source}{name}.gz", folder / f"{name}.part"
        say(f"downloading {url} to {folder}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            download_url_to_file(url, str(part), progress=False)
        except (OSError, ValueError) as error:  # urllib raises both
            raise DataError(f"cannot download MNIST to {folder}: {error}") from None
        if (got := _md5(read_content(part))) != md5:
            raise DataError(
                f"{url} is not the published file: got MD5 {got} of its decompressed content, "
                f"expected {md5}; take another mirror with {SOURCE_VARIABLE}"
            )
        part.replace(folder / f"{name}.gz")


def read_content(path: Path) -> bytes:
    """The bytes of the file, decompressed if they are gzip; raises DataError if unreadable."""
    try:
        content = path.read_bytes()
        # The content decides, not the suffix: some browsers decompress a .gz and keep its name.
        return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}; copy the file again") from error


def decode(content: bytes, where: Path) -> NDArray[np.uint8]:
    """The array in an IDX file of unsigned bytes; raises DataError naming the file `where`."""
    import numpy as np

    dimensions = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    header = 4 + 4 * dimensions
    if dimensions and len(content) >= header:
        shape = struct.unpack(f">{dimensions}I", content[4:header])
        if len(content) == header + math.prod(shape):
            return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)
    raise DataError(f"{where} is damaged, or no IDX file of unsigned bytes; copy the file again")
