"""The handwritten digits that come with dpbench; nothing is downloaded.

They are 1,797, which scikit-learn has too: 8×8 images of 17 gray levels, the test set of the UCI
"Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998), in files beside this one;
`digits-licence.txt` has their license. A sweep trains on all of them; `dpbench train` holds out a
fifth.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from dpbench.data.mnist import read_idx
from dpbench.data.registry import Split

EVERY = 5
"""One sample in so many is held out."""
DIGITS_FOLDER = Path(__file__).parent
BRIGHTEST = 16
"""The gray level of full ink; 0 is paper."""
SIDE = 28
"""Side in pixels after resizing: that of MNIST, so that both fit the same architectures."""


def read_digits(split: Split | None = None) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images, float32 (n, 1, 28, 28), and digits, int64 (n,).

    These are all 1,797, the 1,442 training or the 355 test samples, in their order. The images are
    scaled to [0, 1], resized bilinearly, and standardized with the mean (about 0.305) and the
    standard deviation (about 0.325) of all pixels.
    """
    levels = read_idx(DIGITS_FOLDER / "digits-images-idx3-ubyte.gz")  # (1797, 8, 8)
    labels = read_idx(DIGITS_FOLDER / "digits-labels-idx1-ubyte.gz")
    planes = torch.from_numpy(levels / BRIGHTEST).unsqueeze(1)
    pixels = F.interpolate(planes, size=(SIDE, SIDE), mode="bilinear", align_corners=False).numpy()
    images = (pixels - pixels.mean()) / pixels.std()
    chosen = slice(None) if split is None else every_fifth(labels) == (split == "test")
    return images[chosen].astype(np.float32), labels[chosen].astype(np.int64)


def every_fifth(targets: NDArray[np.integer]) -> NDArray[np.bool_]:
    """A mask, bool (n,), of every fifth sample of each class, in order.

    So every class has the same share of test samples, whatever the order, and they are always the
    same ones.
    """
    held_out = np.zeros(len(targets), dtype=np.bool_)
    for target in np.unique(targets):
        held_out[np.flatnonzero(targets == target)[EVERY - 1 :: EVERY]] = True
    return held_out
