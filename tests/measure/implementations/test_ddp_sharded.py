"""What a rank of ddp-sharded holds, and what its steps send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.measure.implementations import Communication, wrap
from dpbench.measure.step import clip_gradients
from tests.builders import trial_spec
from tests.measure.implementations.architectures import Rows
from tests.parallel.ranks import run_ranks


def one_step(rank: int) -> tuple[int, Communication | None]:
    torch.manual_seed(0)
    module = Rows().build_model()
    model = wrap(module, trial_spec(implementation="ddp-sharded"), rank)
    optimizer: Any = model.optimizer(torch.optim.AdamW(module.parameters()))
    model.backward(model.forward(torch.randn(3, 4)).sum())
    norm = clip_gradients(optimizer, 1e-3)
    optimizer.step()
    left = torch.nn.utils.get_total_norm(optimizer.gradients().values())
    assert norm.item() > 1e-3
    assert left.item() == pytest.approx(1e-3, rel=1e-3)
    return sum(p.nbytes for p in module.parameters()), model.communication()


def test_a_step_sums_into_shares_and_gathers_them(tmp_path: Path) -> None:
    for nbytes, communication in run_ranks(one_step, tmp_path / "store"):
        assert communication == Communication(bytes=nbytes, collectives=2)
