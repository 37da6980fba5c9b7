"""Finds the files of MNIST, and checks whether they are the published ones.

MNIST: LeCun, Cortes and Burges, "The MNIST database of handwritten digits". The user puts the four
files, or the two of a split, into a folder, or has `mnist_download` do it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from dpbench.errors import DataError

Split = Literal["train", "test"]
File = TypeVar("File")

_NO_FILES = (
    "let dpbench train --download fetch them, or use --data digits or --data synthetic, which need "
    "no files"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedFile:
    """One of the four files as published."""

    name: str
    samples: int
    content_md5: str
    """MD5 of the decompressed bytes, which does not change if they are compressed again."""

    @property
    def content_bytes(self) -> int:
        """Size of the decompressed file: a header, then a byte per pixel or label."""
        is_images = "images" in self.name
        return 16 + 28 * 28 * self.samples if is_images else 8 + self.samples


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitFiles(Generic[File]):
    """The two files of a split: as published, or their paths."""

    images: File
    labels: File


PUBLISHED: dict[Split, SplitFiles[PublishedFile]] = {
    "train": SplitFiles(
        images=PublishedFile(
            name="train-images-idx3-ubyte",
            samples=60_000,
            content_md5="6bbc9ace898e44ae57da46a324031adb",
        ),
        labels=PublishedFile(
            name="train-labels-idx1-ubyte",
            samples=60_000,
            content_md5="a25bea736e30d166cdddb491f175f624",
        ),
    ),
    "test": SplitFiles(
        images=PublishedFile(
            name="t10k-images-idx3-ubyte",
            samples=10_000,
            content_md5="2646ac647ad5339dbf082846283269ea",
        ),
        labels=PublishedFile(
            name="t10k-labels-idx1-ubyte",
            samples=10_000,
            content_md5="27ae3e4e09519cfbb04c329615203637",
        ),
    ),
}


def find(data_dir: Path | None, split: Split) -> SplitFiles[Path]:
    """The files of a split; raises DataError naming the missing ones and where to put them.

    Each may be gzip-compressed or not, and named "-idx3-ubyte" or ".idx3-ubyte". If there are
    several variants of one file, the first in that order is taken; they hold the same bytes, which
    `verify` checks.
    """
    files = PUBLISHED[split]
    names = (files.images.name, files.labels.name)
    if data_dir is None:
        raise DataError(
            f"dataset 'mnist': got no data folder, expected one with {_or_gz(names)}; give it "
            f"with --data-dir, or {_NO_FILES}"
        )
    images, labels = (locate(data_dir, name) for name in names)
    if images is None or labels is None:
        missing = [name for name, path in zip(names, (images, labels), strict=True) if path is None]
        raise DataError(
            f"dataset 'mnist': {data_dir} lacks {_or_gz(missing)}; put the file there, or "
            f"{_NO_FILES}"
        )
    return SplitFiles(images=images, labels=labels)


def verify(published: PublishedFile, path: Path, content: bytes, samples: int) -> str | None:
    """None if `content` is the published file, else a note that it is another set.

    A file with as many samples as the published one but other bytes is damaged, or belongs to
    another dataset of the same shape (Fashion-MNIST has the same names): that raises DataError.
    """
    if samples != published.samples:
        return (
            f"{path} has {samples} samples, not the {published.samples} of the published MNIST; "
            "its checksum was not compared"
        )
    # MD5 identifies known files and is no protection: the hashes were published as MD5.
    got = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if got != published.content_md5:
        raise DataError(
            f"{path} is not the published {published.name}: got MD5 {got} of its decompressed "
            f"content, expected {published.content_md5}; copy the file again"
        )
    return None


def _or_gz(names: list[str] | tuple[str, ...]) -> str:
    return " and ".join(f"{name}[.gz]" for name in names)


def locate(folder: Path, name: str) -> Path | None:
    """The file of that published name in one of its spellings, None if there is none."""
    for spelling in (name, name.replace("-idx", ".idx")):
        for suffix in ("", ".gz"):
            path = folder / f"{spelling}{suffix}"
            if path.is_file():
                return path
    return None
