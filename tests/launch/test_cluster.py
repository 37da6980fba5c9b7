"""Nodes of a sweep in one process, with a store that they share: they read only what is signed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import (
    HashStore,  # type: ignore[attr-defined]
    Store,
)

from dpbench.errors import DpbenchError, UsageError
from dpbench.launch import signed_store
from dpbench.launch.cluster import Cluster, ClusterRunner, Node, NodeLost, require_common
from dpbench.launch.failures import failure_of_end
from dpbench.launch.signed_store import TOKEN_VARIABLE, SignedStore, given_token
from dpbench.rendezvous.barrier import wait_until
from dpbench.rendezvous.placement import Placement
from tests.builders import MACHINE, configuration

TOKEN = "a-token-of-the-tests"
LIMIT_SECONDS = 20.0


def sleeps(_: int) -> None:
    time.sleep(2 * LIMIT_SECONDS)


class Sleeping(ClusterRunner):
    """Starts ranks that take longer than their trial may."""

    def rank_function(self, *_: object) -> Callable[[int], Any]:
        return sleeps


NODES = tuple(
    Node(
        number=number,
        machine=MACHINE,
        devices=("cpu",),
        common={"--batch-sizes": f"{8 + number}", "--steps": "5"},
    )
    for number in range(2)
)


def clusters() -> list[Cluster]:
    store = HashStore()
    found = []
    for number in range(2):
        signed = SignedStore(store, TOKEN, "node", member=number, members=2)
        signed.launch_id = "launch"
        placement = Placement(
            rank=number, world_size=2, node=number, node_count=2, address="127.0.0.1"
        )
        found.append(Cluster(placement, NODES, signed))
    return found


def test_a_node_ends_its_ranks_when_node_0_stops_the_trial(tmp_path: Path) -> None:
    lead, other = clusters()
    runner = Sleeping(other, [(configuration(replicas_by_node=(1, 1)), 0)], tmp_path)
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(runner.follow, LIMIT_SECONDS)
        lead.set_state(order=1, trial=0)
        while not [*tmp_path.glob("*/rank1.stack")]:
            time.sleep(0.05)
        lead.set_state(trial=None)
        while (state := lead.state(1)).order != 1:
            time.sleep(0.05)
        leaving = pool.submit(other.leave, "")  # once it no longer follows
        lead.leave("")
        following.result()
        leaving.result()
    assert (state.measurements, state.failures) == ((), ())


def test_what_one_node_cannot_run_several_cannot(tmp_path: Path) -> None:
    runner = ClusterRunner(clusters()[0], (), tmp_path)
    across = configuration(replicas_by_node=(1, 1))
    assert runner.unusable_reason(across) is None
    half = replace(across, workload=replace(across.workload, dtype="f16"))
    assert f"{NODES[0].name}: got dtype f16" in (runner.unusable_reason(half) or "")


def test_nodes_with_other_options_both_say_which_differ() -> None:
    for other, me in (NODES, NODES[::-1]):
        sizes = f"{8 + other.number} and {8 + me.number}"
        with pytest.raises(UsageError, match=rf"differ in --batch-sizes {sizes}; expected the s"):
            require_common(NODES, me)


def test_nodes_with_other_plans_do_not_begin() -> None:
    lead, other = clusters()
    other.set_state(plan="b")
    with pytest.raises(UsageError, match="have different plans: a file that they read is not the"):
        lead.agree_on_plan("a")
    other.leave("")
    lead.leave("it ended: other plans")


def test_a_node_learns_how_node_0_ended(tmp_path: Path) -> None:
    lead, other = clusters()
    with ThreadPoolExecutor(1) as pool:
        leaving = pool.submit(lead.leave, "it ended: no data")
        with pytest.raises(NodeLost, match=r"node 0 .* was lost: it ended: no data"):
            Sleeping(other, [(configuration(), 0)], tmp_path).follow(LIMIT_SECONDS)
        other.leave("")
        leaving.result()


def test_a_state_that_is_too_large_ends_both_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signed_store, "MAX_BYTES", 1000)
    lead, other = clusters()
    failure = replace(failure_of_end(1, 0), details=os.urandom(1000).hex())
    other.set_state(failures=(failure,))
    with pytest.raises(NodeLost, match=r"lost: state 1 takes 1\.\d* KiB, expected at most 1000 B"):
        wait_until(lambda: other.state(0).end)
    other.leave("it ended: too large")
    with pytest.raises(NodeLost, match=r"node 1 .* was lost: it ended: too large"):
        wait_until(lambda: lead.state(1).end)
    lead.leave("")


OTHER = "another-token-of-tests"


def arrived(store: Store) -> list[SignedStore]:
    """The two members of one launch, when both have come."""
    made = [SignedStore(store, TOKEN, "node", member=n, members=2) for n in range(2)]
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(one.wait_for_members, {"n": n}, 5) for n, one in enumerate(made)]
    assert [one.result() for one in waiting] == [[{"n": 0}, {"n": 1}]] * 2
    return made


def test_what_this_launch_has_not_signed_is_ignored() -> None:
    store = HashStore()
    first, second = arrived(store)
    first.put("order", {"trial": 3})
    assert second.get("order") == {"trial": 3}
    signed = store.get("order")
    earlier_store = HashStore()
    arrived(earlier_store)[0].put("order 4", {"trial": 3})
    forged = [
        signed[:-1] + b"\0",
        os.urandom(64),
        b"",
        signed,  # the value of another key
        earlier_store.get("order 4"),  # another launch
    ]
    for number, value in enumerate(forged):
        store.set(f"order {number}", value)
    assert [second.get(f"order {number}") for number in range(5)] == [None] * 5


def test_a_member_that_does_not_come_is_named() -> None:
    with pytest.raises(DpbenchError, match="node 1 did not come within 200 ms"):
        SignedStore(HashStore(), TOKEN, "node", member=0, members=2).wait_for_members({}, 0.2)


def test_two_members_cannot_have_one_number() -> None:
    store = HashStore()
    first = SignedStore(store, TOKEN, "node", member=0, members=2)

    def another_comes() -> None:
        store.set("hello 0", "of another process")
        store.set("hello 1", "of node 1")

    threading.Timer(0.2, another_comes).start()
    with pytest.raises(UsageError, match="another process has come as node 0 after this one"):
        first.wait_for_members({}, LIMIT_SECONDS)


def test_a_member_with_another_token_does_not_join() -> None:
    store = HashStore()
    first, second = (
        SignedStore(store, token, "node", member=number, members=2)
        for number, token in enumerate((TOKEN, OTHER))
    )
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(one.wait_for_members, {}, 1.0) for one in (first, second)]
    for other, one in zip((1, 0), waiting, strict=True):
        with pytest.raises(
            DpbenchError, match=rf"node {other} \(with another token\) did not come"
        ):
            one.result()


def test_the_token_comes_from_the_environment() -> None:
    assert given_token({}) is None
    assert given_token({TOKEN_VARIABLE: f"{TOKEN} "}) == TOKEN
    with pytest.raises(UsageError, match="15 characters; expected at least 16") as refused:
        given_token({TOKEN_VARIABLE: TOKEN[:15]})
    assert TOKEN[:15] not in str(refused.value)
