"""`dpbench.explain`: the answer of the command, in somebody else's program."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pytest

import dpbench
from dpbench.errors import UsageError
from tools.docs import ROOT

EXAMPLE = ROOT / "results" / "examples" / "two-cores"
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10_000):
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_rows_of_a_folder_are_explained_with_their_factors(
    capfd: pytest.CaptureFixture[str],
) -> None:
    row = {"implementations": "torch-ddp", "backends": "gloo", "group_sizes": [2]}
    explained = dpbench.explain(EXAMPLE, **row, batch_sizes=32)
    label = "torch-ddp/gloo ×2, batch 32"
    assert f"{label} reaches " in " ".join(str(explained).split())
    assert capfd.readouterr() == ("", "")
    (found,) = explained.data["configurations"]
    product = math.prod(factor["value"] for factor in found["factors"])
    assert product == pytest.approx(found["efficiency"]["value"], rel=0.05)
    assert dpbench.explain(dpbench.load(EXAMPLE), **row, batch_sizes=32) == explained


@pytest.mark.full
def test_a_training_script_is_measured_without_a_word_and_signals_stay(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (here / "train.py").write_text(SCRIPT)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    explained = dpbench.explain(
        "train.py", gpus=2, oversubscribe=True, repetitions=1, steps=20, name="mine", progress=False
    )
    assert explained.data["configurations"][0]["factors"][-1]["parts"] == ["communication"]
    assert dpbench.load("results/mine").rows.group_size.max() == 2
    assert capfd.readouterr() == ("", "")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_errors_name_arguments(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"argument of dpbench.explain: got 'group'; did you mean"):
        dpbench.explain(EXAMPLE, group=2)
    with pytest.raises(UsageError, match=r"no such row; there are --implementations dp"):
        dpbench.explain(EXAMPLE, group_sizes=99)
    with pytest.raises(UsageError, match=r"^--steps: it is for measuring a script"):
        dpbench.explain(EXAMPLE, steps=5)
