"""The 1,797 handwritten digits that scikit-learn also has; nothing is downloaded.

8×8 images of 17 grey levels, the test set of the UCI "Optical Recognition of Handwritten Digits"
(Alpaydin and Kaynak, 1998), in files beside this one; `digits-licence.txt` has their licence. A
sweep trains on all of them; `dpbench train` holds out a fifth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from dpbench.data import hold_out, idx

FOLDER = Path(__file__).parent
BRIGHTEST = 16
"""The grey level of full ink; 0 is paper."""
SIDE = 28
"""Side in pixels after resizing: that of MNIST, so that both fit the same architectures."""


def read() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images, float32 (1797, 1, 28, 28), and digits, int64 (1797,).

    The images are scaled to [0, 1], resized bilinearly, and standardised with the mean (about
    0.305) and the standard deviation (about 0.325) of all pixels.
    """
    images, targets = raw()
    return standardise(resize(images / BRIGHTEST)), targets.astype(np.int64)


def raw() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Grey levels (1797, 8, 8) from 0 to BRIGHTEST, and digits (1797,)."""
    images, targets = (
        idx.decode(idx.read_content(path, dimensions), dimensions, path)
        for path, dimensions in (
            (FOLDER / "digits-images-idx3-ubyte.gz", 3),
            (FOLDER / "digits-labels-idx1-ubyte.gz", 1),
        )
    )
    return images, targets


def read_split(split: Literal["train", "test"]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The 1,442 training or the 355 test samples of `read`, in their order."""
    images, targets = read()
    chosen = hold_out.every_fifth(targets) == (split == "test")
    return images[chosen], targets[chosen]


def resize(images: NDArray[np.float64]) -> NDArray[np.float64]:
    """Resize square images (n, side, side) to (n, 1, 28, 28), bilinearly between pixel centres."""
    planes = torch.from_numpy(images).unsqueeze(1)
    resized = F.interpolate(planes, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    return np.asarray(resized.numpy())


def standardise(images: NDArray[np.float64]) -> NDArray[np.float32]:
    """The images with mean 0 and standard deviation 1 over all pixels."""
    scaled: NDArray[np.float64] = (images - images.mean()) / images.std()
    return scaled.astype(np.float32)
