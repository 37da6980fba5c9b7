"""A replica keeps the threads that its trial gives it."""

from __future__ import annotations

import torch

from dpbench.measure.implementations.model import threads_kept


def test_the_number_of_threads_is_what_it_was() -> None:
    before = torch.get_num_threads()
    with threads_kept():
        torch.set_num_threads(before + 1)
    assert torch.get_num_threads() == before
