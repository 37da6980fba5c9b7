"""A process group that names who is missing, and is left whatever happens; what its ranks say to
each other."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from dpbench.launch.fork_world import fork_world
from dpbench.launch.ranks import run_ranks
from dpbench.rendezvous import process_group as process_groups
from dpbench.rendezvous.placement import LOOPBACK, Placement
from dpbench.rendezvous.process_group import RankGroup, process_group, rank_group
from dpbench.rendezvous.store import open_store, serve_store
from tests.ports import free_port, listening

SHORT = timedelta(seconds=0.5)
LONG = timedelta(seconds=20)


def join(*arguments: Any, **options: Any) -> None:
    with process_group(*arguments, **options):
        pass


def sum_of_ranks() -> float:
    tensor = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(tensor)
    return tensor.item()


def two_ranks_join_leave_and_join_again(rank: int) -> None:
    for _ in range(2):  # one of them may be a group ahead
        with process_group(timeout=LONG, device="cpu") as ranks:
            assert (ranks.rank, ranks.size, dist.get_backend()) == (rank, 2, "gloo")
            assert ranks.device == torch.device("cpu")
            assert sum_of_ranks() == 3.0
            if rank == 0:
                time.sleep(0.1)
        assert not dist.is_initialized()


def a_group_is_left_after_an_error_and_none_is_nested(_: int) -> None:
    with pytest.raises(KeyError), process_group("gloo", timeout=LONG):  # noqa: PT012
        with pytest.raises(RuntimeError, match="a process group already; leave it first"):
            join("gloo", timeout=LONG)
        raise KeyError
    assert not dist.is_initialized()


def more_is_logged_in_groups_after_it(_: int) -> None:
    process_groups.enable_debug_logging()
    with process_group("gloo", timeout=LONG):
        assert os.environ["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
        assert dist.get_debug_level() == dist.DebugLevel.DETAIL
        assert sum_of_ranks() == 3.0
    for name in process_groups.DEBUG_VARIABLES:
        del os.environ[name]
    dist.set_debug_level_from_env()


def the_absent_ranks_are_named_in_time(_: int) -> None:
    os.environ["WORLD_SIZE"] = "4"
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"ranks 2 and 3 did not come within 0.5 s \(this is"):
        join("gloo", timeout=SHORT)
    assert time.monotonic() - start < LONG.total_seconds()
    os.environ["WORLD_SIZE"] = "2"


def the_first_collective_has_passed_when_the_block_begins(_: int) -> None:
    """So that none in a timed window opens connections; without waiting there is none."""
    classes = []
    for backend in ("gloo", "shm"):
        for waits, expected in ((True, 1), (False, 0)):
            with (
                patch.object(dist, "all_reduce", wraps=dist.all_reduce) as reducing,
                process_group(backend, timeout=LONG, device="cpu", wait_for_workers=waits) as ranks,
            ):
                assert reducing.call_count == expected
                assert sum_of_ranks() == 3.0
                assert not waits or (ranks.comm_init_seconds or 0) > 0
                classes.append(process_groups.default_group_class(ranks.device))
    assert classes == ["ProcessGroupGloo"] * 2 + ["ShmProcessGroup"] * 2


def a_place_and_a_rank_may_be_arguments(rank: int) -> None:
    """The variables are then of no account."""
    port = int(os.environ["MASTER_PORT"])
    kept = {name: os.environ.pop(name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    own: dict[str, Any] = {"rank": rank, "world_size": 2, "timeout": LONG, "device": "cpu"}
    file = Path(tempfile.gettempdir()) / f"dpbench-test-{port}"
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=LONG)
    try:
        for place in ({"init_method": f"file://{file}"}, {"store": dist.PrefixStore("own", store)}):
            with process_group("gloo", **place, **own) as ranks:
                assert (ranks.rank, ranks.size) == (rank, 2)
                assert sum_of_ranks() == 3.0
        os.environ["DPBENCH_STORE_FILE"] = "/nonexistent/of/a/launcher"
        with process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", **own):
            assert sum_of_ranks() == 3.0
    finally:
        os.environ.pop("DPBENCH_STORE_FILE", None)
        os.environ.update(kept)
        if rank == 0:
            file.unlink(missing_ok=True)


def the_checks_of_two_ranks(port: int, rank: int) -> None:
    """With the variables that somebody types in two shells: rank 0 holds the store."""
    for name in ("DPBENCH_STORE_FILE", "TORCHELASTIC_USE_AGENT_STORE"):
        del os.environ[name]
    os.environ["MASTER_PORT"] = str(port)
    two_ranks_join_leave_and_join_again(rank)
    a_group_is_left_after_an_error_and_none_is_nested(rank)
    more_is_logged_in_groups_after_it(rank)
    the_absent_ranks_are_named_in_time(rank)
    the_first_collective_has_passed_when_the_block_begins(rank)
    a_place_and_a_rank_may_be_arguments(rank)


def test_two_ranks_that_were_started_by_hand(tmp_path: Path) -> None:
    run_ranks(partial(the_checks_of_two_ranks, free_port()), 2, tmp_path, 60)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    for name in ("TORCHELASTIC_USE_AGENT_STORE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": free_port()}.items():
        monkeypatch.setenv(name, str(value))
    yield monkeypatch
    assert not dist.is_initialized()


def test_rank_0_is_named_when_it_does_not_come_to_hold_the_store(alone: pytest.MonkeyPatch) -> None:
    alone.setenv("WORLD_SIZE", "3")
    alone.setenv("RANK", "1")
    start = time.monotonic()
    words = r"rank 0 did not come within 0.5 s: it holds the store at 127.0.0.1:\d+, and there: Con"
    with pytest.raises(RuntimeError, match=words):
        join("gloo", timeout=SHORT)
    assert time.monotonic() - start < LONG.total_seconds()


@pytest.mark.usefixtures("alone")
def test_a_store_at_loopback_listens_there_alone() -> None:
    with process_group("gloo", timeout=LONG):
        port = int(os.environ["MASTER_PORT"])
        assert [at for at in listening(os.getpid()) if at[1] == port] == [("127.0.0.1", port)]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (("mpi",), {}, ValueError, "got backend='mpi', expected one of gloo, nccl, shm, nccl-le"),
        ((), {"device": "mps"}, ValueError, "expected a CPU or CUDA device"),
        (("gloo",), {"timeout": timedelta()}, ValueError, "got timeout=0:00:00, expected more"),
        (("gloo",), {"init_method": "foo://"}, RuntimeError, "No rendezvous handler for foo://"),
        (("gloo",), {"init_method": "tcp://h"}, ValueError, "port number missing"),
        (
            ("gloo",),
            {"store": dist.HashStore(), "init_method": "env://"},
            ValueError,
            "got a store and init_method='env://'; give one of them",
        ),
        (("gloo",), {"rank": 3, "world_size": 2}, ValueError, "got RANK='3', expected an integer"),
        (("nccl",), {"device": "cpu"}, (RuntimeError, ValueError), "nccl"),
    ],
)
@pytest.mark.usefixtures("alone")
def test_what_cannot_be_is_refused_before_anything_starts(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        join(*arguments, **options)


def test_trials_that_share_a_store_have_keys_of_their_own() -> None:
    served = serve_store()
    place = Placement(rank=1, world_size=2, address=LOOPBACK, port=served.port)
    first = replace(place, store_prefix="trial 1")
    open_store(first, LONG).set("address", "of a rank")
    assert open_store(first, LONG).check(["address"])
    for other in (replace(place, store_prefix="trial 2"), place):
        assert not open_store(other, LONG).check(["address"])


def test_a_rank_whose_launcher_has_removed_its_folder_does_not_wait_for_it(tmp_path: Path) -> None:
    place = Placement.first_of(1, store_file=str(tmp_path / "gone" / "store"))
    with pytest.raises(RuntimeError, match="the launcher has ended"):
        open_store(place, LONG)


@pytest.mark.parametrize("backend", ["nccl", "nccl-legacy", "nccl2"])
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.usefixtures("alone")
def test_nccl_knows_its_device_and_is_aborted_after_an_error(
    backend: str, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To destroy it would wait for ranks that are in a collective, and hide the error."""
    calls: list[str] = []

    def noted(group: object, call: str) -> None:
        calls.append(call)
        dist.group.WORLD = group

    made = SimpleNamespace(abort=lambda: noted(None, "abort"))
    monkeypatch.setattr(
        dist,
        "init_process_group",
        lambda name, **o: noted(made, f"init {name} on {o['device_id']}"),
    )
    monkeypatch.setattr(dist, "destroy_process_group", lambda: noted(None, "destroy"))
    monkeypatch.setattr(process_groups, "missing_reason", lambda _: None)
    monkeypatch.setattr(process_groups, "parse_device", torch.device)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    options: dict[str, Any] = {"device": "cuda:1", "wait_for_workers": False, "timeout": LONG}
    with suppress(KeyError), process_group(backend, store=dist.HashStore(), **options):
        if raises:
            raise KeyError
    end = "abort" if raises else "destroy"
    assert calls == [f"init {backend} on cuda:1", end]


@pytest.mark.gpu
@pytest.mark.usefixtures("alone")
def test_nccl_is_warm_when_the_block_begins() -> None:
    with process_group(timeout=LONG) as ranks:
        assert (dist.get_backend(), ranks.device) == ("nccl", torch.device("cuda", 0))
        assert torch.cuda.current_device() == 0
        start = time.monotonic()
        dist.all_reduce(torch.ones(1, device=ranks.device))
        torch.cuda.synchronize()
        assert time.monotonic() - start < (ranks.comm_init_seconds or 0)


def of_all_ranks(rank: int) -> list[object]:
    found: list[object] = []
    for backend in ("gloo", "shm", "none"):
        with rank_group(backend, 2, timeout=LONG) as ranks:
            ranks.barrier()
            found.append(ranks.rank == rank)
            found.append(ranks.max(rank))
            found.append(ranks.gather([rank, 0.1]))
            found.append(ranks.on_first(lambda: b"first"))
            found.append(ranks.gather_on_first({"rank": rank}))
        assert not dist.is_initialized()
    with rank_group("gloo", 2, timeout=LONG) as ranks:  # never on the group's or a model's device
        assert ranks.control is not None
        ranks.control.bound_device_id = torch.device("cuda:0")  # which is not here
        torch.set_default_device("meta")
        ranks.barrier()
        assert (ranks.max(rank), ranks.on_first(lambda: 5)) == (1.0, 5)
        assert ranks.gather_on_first(rank) == (None if rank else [0, 1])
        torch.set_default_device("cpu")
        what_rank_0_raises_is_heard_by_all(ranks)
    return found


def what_rank_0_raises_is_heard_by_all(ranks: RankGroup) -> None:
    def fail() -> None:
        raise ValueError("no samples\nand more")

    heard = "^cannot complete: rank 0 failed .*: ValueError: no samples$"
    words = heard if ranks.rank else "^no samples"
    with pytest.raises(RuntimeError if ranks.rank else ValueError, match=words):
        ranks.on_first(fail)
    assert ranks.on_first(lambda: 5) == 5


def test_every_rank_gets_what_all_have() -> None:
    expected = [True, 1.0, [[0, 0.1], [1, 0.1]], b"first", [{"rank": 0}, {"rank": 1}]] * 3
    on_others = [None if isinstance(one, list) and {"rank": 0} in one else one for one in expected]
    assert fork_world(of_all_ranks, 2, timeout=LONG) == [expected, on_others]


def test_one_process_gets_its_own() -> None:
    device = torch.device("meta")
    with rank_group("threads", 1, device) as ranks:
        assert ranks == RankGroup(device=device)
        assert ranks.gather([1, 2]) == [[1, 2]]
        assert ranks.on_first(lambda: 3) == 3
