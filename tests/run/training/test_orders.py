"""Ranks of a launch take orders from its rank 0, and from nobody else who reaches the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dpbench.codec import encode
from dpbench.errors import TrainingFailed, UsageError
from dpbench.launch.signed_store import VARIABLE
from dpbench.rendezvous.launch_variables import LOOPBACK, LaunchVariables
from dpbench.rendezvous.store import STORE_FILE
from dpbench.run.training.joined import _follow
from dpbench.run.training.orders import Agreed, Launch, Orders, RankDescription
from dpbench.specs.training import TrainingRun, TrainingSpec
from tests.builders import WORKLOAD
from tests.cli.training import asked

SECONDS = 10.0
TOKEN = "a-token-of-the-tests"
EVIL = "open('ran', 'w').close()\n\n\ndef net():\n    raise AssertionError\n"


def orders(arch: str = "mlp", data: str = "digits") -> Orders:
    workload = encode(WORKLOAD) | {"architecture": arch, "dataset": data}
    spec = TrainingSpec(
        workload=type(WORKLOAD)(**workload),
        implementation="ddp",
        backend="gloo",
        group_size=2,
        batch_size=4,
        devices=("cpu", "cpu"),
        threads_per_replica=1,
        epochs=1,
    )
    return Orders(spec=spec, run=TrainingRun(), folder="runs/r", preparers=(0, 0))


def launch(folder: Path, *tokens: str | None, seconds: float = SECONDS) -> list[Launch]:
    """The ranks of a launch of two, which meet in a file of that folder."""

    def rank(number: int) -> Launch:
        place = LaunchVariables(rank=number, world_size=2, address=LOOPBACK, port=1)
        token = tokens[number]
        environ = {STORE_FILE: str(folder / "store")} | ({VARIABLE: token} if token else {})
        return Launch(place, environ, seconds)

    with ThreadPoolExecutor() as threads:
        return list(threads.map(rank, range(len(tokens))))


@pytest.mark.parametrize("token", [None, TOKEN])
def test_the_orders_of_rank_0_arrive(tmp_path: Path, token: str | None) -> None:
    leads, follows = launch(tmp_path, token, token)
    description = RankDescription(device="cpu", host="a", cores=4)
    for one in (leads, follows):
        one.report(description)
    assert leads.descriptions() == [description] * 2
    leads.order(orders())
    assert follows.orders() == orders()
    leads.order(UsageError("no such thing"))
    with pytest.raises(Agreed, match="no such thing"):
        follows.orders()


def test_a_rank_with_another_token_gives_no_orders(tmp_path: Path) -> None:
    stranger, follows = launch(tmp_path, "another-token-of-tests", TOKEN)
    stranger.order(orders())
    with pytest.raises(TrainingFailed, match=f"no rank of this launch has said; .*{VARIABLE}"):
        follows.orders()


def test_a_rank_that_does_not_come_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match=r"rank 1 of 2 did not come within 0\.2 s"):
        launch(tmp_path, TOKEN, seconds=0.2)


@pytest.mark.parametrize("named", [{"arch": "evil.py:net"}, {"data": "evil.py:net"}])
def test_no_order_imports_code_that_the_command_does_not_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    leads, follows = launch(tmp_path, None, None)
    leads.order(orders(**named))
    with pytest.raises(Agreed, match=r"the order is for .* evil.py:net, the command here for"):
        _follow(follows, asked(arch="mlp"))
    assert not (tmp_path / "ran").exists()
