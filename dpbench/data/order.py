"""The order of the samples in an epoch: a permutation that the seed and the epoch decide."""

from __future__ import annotations

import numpy as np
import torch


def permutation(samples: int, *, seed: int, epoch: int) -> torch.Tensor:
    """The indices 0 to `samples` - 1, int64 (samples,), shuffled anew for every epoch.

    The same in every process and on every machine; torch's random state has no part in it.
    """
    generator = np.random.default_rng((seed, epoch))
    return torch.from_numpy(generator.permutation(np.arange(samples, dtype=np.int64)))
