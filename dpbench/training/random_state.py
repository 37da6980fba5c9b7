"""The state of a process's random number generators, as plain values for a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

State = dict[str, Any]


def seed_all(seed: int) -> None:
    """Seed all generators whose state `take` returns."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def take(*devices: torch.device) -> State:
    """The state of torch's CPU generator, of those of the CUDA devices among `devices`, and of
    Python's and NumPy's, as an architecture may draw from any."""
    version, words, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    numpy["state"]["key"] = numpy["state"]["key"].tolist()
    on_cuda = [device for device in devices if device.type == "cuda"]
    return {
        "cpu": torch.get_rng_state(),
        "cuda": {str(device): torch.cuda.get_rng_state(device) for device in on_cuda},
        "python": [version, list(words), gauss],
        "numpy": numpy,
    }


def restore(state: State) -> None:
    """Restore the state, so that the next numbers are those that would have followed `take`.

    Raises KeyError, TypeError, ValueError or RuntimeError for a state that `take` did not return,
    or a CUDA device that is not here.
    """
    torch.set_rng_state(state["cpu"])
    for device, words in state["cuda"].items():
        torch.cuda.set_rng_state(words, device)
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])


@contextmanager
def preserved(*devices: torch.device) -> Iterator[None]:
    """A context whose random draws do not change later ones."""
    state = take(*devices)
    try:
        yield
    finally:
        restore(state)
