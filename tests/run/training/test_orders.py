"""Ranks of a launch take orders from its rank 0, and from nobody else who reaches the store."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from dpbench.codec import encode
from dpbench.errors import TrainingFailed, UsageError
from dpbench.launch.launch_store import serve_store
from dpbench.launch.nodes.handshake import VARIABLE
from dpbench.rendezvous.launch_variables import LOOPBACK, LaunchVariables
from dpbench.run.training.joined import _follow
from dpbench.run.training.orders import Agreed, Launch, Orders
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


class Store:
    """That of a launch, and whoever comes to it."""

    def __init__(self) -> None:
        self._served = serve_store(LOOPBACK)

    def rank(self, number: int, token: str | None = None) -> Launch:
        place = LaunchVariables(rank=number, world_size=2, address=LOOPBACK, port=self._served.port)
        environ = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "job"}
        return Launch(place, environ | ({VARIABLE: token} if token else {}), SECONDS)

    def stranger(self) -> PrefixStore:
        """Where a launch's first training says things; its names are no secret."""
        store = TCPStore(
            LOOPBACK, self._served.port, is_master=False, timeout=timedelta(seconds=SECONDS)
        )
        attempt = PrefixStore("process_group, attempt 0", store)
        return PrefixStore("training 1", PrefixStore("dpbench train", attempt))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.mark.parametrize("token", [None, TOKEN])
def test_the_orders_of_rank_0_arrive(store: Store, token: str | None) -> None:
    leads, follows = store.rank(0, token), store.rank(1, token)
    leads.order(orders())
    assert follows.orders() == orders()
    leads.order(UsageError("no such thing"))
    with pytest.raises(Agreed, match="no such thing"):
        follows.orders()


@pytest.mark.parametrize(
    "said",
    [
        json.dumps(encode(orders())),
        f"- {json.dumps(encode(orders()))}",
        f"{'0' * 64} {json.dumps(encode(orders()))}",
        '- {"error": "x", "kind": "UsageError"}',
        "",
    ],
)
def test_what_a_stranger_says_is_no_order_where_the_ranks_share_a_token(
    store: Store, said: str
) -> None:
    follows = store.rank(1, TOKEN)
    store.stranger().set("orders", said)
    with pytest.raises(TrainingFailed, match=f"no rank of this launch has said; .*{VARIABLE}"):
        follows.orders()


def test_what_was_said_under_another_key_or_in_another_training_is_no_order(store: Store) -> None:
    leads, follows = store.rank(0, TOKEN), store.rank(1, TOKEN)
    leads.tell(TrainingFailed("over"))
    stranger = store.stranger()
    stranger.set("orders", stranger.get("end"))
    with pytest.raises(TrainingFailed, match="no rank of this launch has said"):
        follows.orders()


@pytest.mark.parametrize(
    "said", ["", "- ", "- [1]", "- {}", '- {"spec": 1}', "- " + "[" * 100_000, "- \x1b[2J"]
)
def test_what_is_no_order_is_one_line(store: Store, said: str) -> None:
    follows = store.rank(1)
    store.stranger().set("orders", said)
    with pytest.raises(TrainingFailed) as raised:
        follows.orders()
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("named", [{"arch": "evil.py:net"}, {"data": "evil.py:net"}])
def test_no_order_imports_code_that_the_command_does_not_name(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    follows = store.rank(1)
    store.stranger().set("orders", f"- {json.dumps(encode(orders(**named)))}")
    with pytest.raises(Agreed, match=r"the order is for .* evil.py:net, the command here for"):
        _follow(follows, asked(arch="mlp"))
    assert not (tmp_path / "ran").exists()
