"""`dpbench.check` and `dpbench.explain`: the answers of the commands, in somebody else's program;
and what is wrong in any call.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dpbench
from dpbench import folders
from dpbench.api.calls import measuring
from dpbench.errors import UsageError
from dpbench.shipped import RESULTS
from tests.analysis.builders import QUIET, runs, slower, trial
from tests.cli.stored import stored

EXAMPLE = RESULTS / "examples" / "two-cores"
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


@pytest.fixture
def unheard(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """The call prints nothing, and signals do afterwards what they did before."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert capfd.readouterr() == ("", "")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.usefixtures("unheard")
def test_a_stored_regression_is_a_verdict_with_its_rows(here: Path) -> None:
    old, new = (
        stored(here / name, runs(trial(), speeds))
        for name, speeds in (("old", QUIET), ("new", slower(QUIET, 0.10)))
    )
    with measuring("dpbench.sweep"):  # which may go on meanwhile
        checked = dpbench.check(candidate=dpbench.load(new), baseline=old, tolerance="5%")
    assert (checked.data["outcome"], checked.data["exit_status"]) == ("regressed", 3)
    assert checked.data["summary"].startswith("regressed: time per image: +")
    assert checked.data["summary"] in " ".join(str(checked).split())
    (row,) = checked.data["rows"]
    assert row["outcome"] == "regressed"
    assert row["slowdown"] == pytest.approx(1 / 0.9, abs=0.02)


@pytest.mark.usefixtures("synthetic", "unheard")
def test_a_check_measures_implementations(here: Path) -> None:
    checked = dpbench.check(
        against="torch-ddp", gpus=2, oversubscribe=True, name="mine", progress=False
    )
    assert checked.data["outcome"] in ("pass", "regressed", "inconclusive")
    command = folders.load_sweep(here / "results/mine").command
    assert command.text.startswith("dpbench check --gpus 2 ")
    assert command.options["against"] == "torch-ddp"


@pytest.mark.usefixtures("unheard")
def test_rows_of_a_folder_are_explained_with_their_factors() -> None:
    row = {"implementations": "torch-ddp", "backends": "gloo", "group_sizes": [2]}
    explained = dpbench.explain(EXAMPLE, **row, batch_sizes=32)
    label = "torch-ddp/gloo ×2, batch 32"
    assert f"{label} reaches " in " ".join(str(explained).split())
    (found,) = explained.data["configurations"]
    product = math.prod(factor["value"] for factor in found["factors"])
    assert product == pytest.approx(found["efficiency"]["value"], rel=0.05)
    assert dpbench.explain(dpbench.load(EXAMPLE), **row, batch_sizes=32) == explained


@pytest.mark.full
@pytest.mark.usefixtures("unheard")
def test_an_explanation_measures_a_training_script(here: Path) -> None:
    (here / "train.py").write_text(SCRIPT)
    explained = dpbench.explain(
        "train.py", gpus=2, oversubscribe=True, repetitions=1, steps=20, name="mine", progress=False
    )
    assert explained.data["configurations"][0]["factors"][-1]["parts"] == ["communication"]
    assert dpbench.load("results/mine").rows.group_size.max() == 2


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (dpbench.load, {"path": 3}, r"^path: got 3; expected the name of a file or folder"),
        (dpbench.sweep, {"batch_sizes": [8, "x"]}, r"^batch_sizes: got 'x'; expected a whole num"),
        (dpbench.sweep, {"dry_run": True}, r"^dpbench.sweep: dry_run is an option of the command"),
        (dpbench.sweep, {"gpus": 999}, r"^--gpus: .* cores?, .*, or add --oversubscribe$"),
        (dpbench.sweep, {"arch": "mpl"}, r"^arch: got 'mpl'; did you mean 'mlp'\? Expected one of"),
        (dpbench.check, {}, r"^got nothing to compare with; expected one of --against-ref REV"),
        (dpbench.check, {"tolerance": 0.05}, r"^tolerance: got 0.05; .* 3% .*; did you mean 5%\?"),
        (dpbench.check, {"arch": "train.py"}, r"check --against-ref HEAD train.py$"),
        (dpbench.check, {"against_rev": "HEAD"}, r"argument of dpbench.check: got 'against_rev'; "),
        (dpbench.explain, {"results_or_script": EXAMPLE, "steps": 5}, r"^--steps: no effect on"),
    ],
)
def test_errors_name_options_and_nothing_is_written(
    here: Path, call: Callable[..., Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        call(**options)
    assert not any(here.iterdir())
