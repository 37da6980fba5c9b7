from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from dpbench.training import archive, random_state

CPU = torch.device("cpu")


def draw() -> list[float]:
    """From every generator; an odd number, so that one of each pair of Gaussians is left over."""
    return [
        *torch.rand(3).tolist(),
        *torch.randn(3).tolist(),
        random.random(),
        random.gauss(0.0, 1.0),
        *np.random.rand(3),
        np.random.randn(),
    ]


def test_the_same_numbers_come_again() -> None:
    draw()
    state = random_state.take(CPU)
    expected = draw()
    random_state.restore(state)
    assert draw() == expected


def test_it_outlives_a_file() -> None:
    state = archive.loads(archive.dumps(random_state.take(CPU)), "here")
    expected = draw()
    random_state.restore(state)
    assert draw() == expected


def test_what_is_drawn_in_between_does_not_count() -> None:
    state = random_state.take(CPU)
    expected = draw()
    random_state.restore(state)
    with random_state.preserved(CPU):
        draw()
    assert draw() == expected


def test_a_process_without_cuda_keeps_no_cuda_state() -> None:
    assert random_state.take(CPU)["cuda"] == {}


@pytest.mark.gpu
def test_a_cuda_device_draws_the_same_numbers_again() -> None:
    device = torch.device("cuda:0")
    state = archive.loads(archive.dumps(random_state.take(device)), "here")
    expected = torch.rand(5, device=device)
    random_state.restore(state)
    assert torch.equal(torch.rand(5, device=device), expected)
