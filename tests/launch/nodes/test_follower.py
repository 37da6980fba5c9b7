"""A node that follows does as node 0 says, and ends its ranks as soon as node 0 is not there."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest

from dpbench.errors import DataError, DpbenchError, Interrupted, LaunchError
from dpbench.launch.nodes import follower
from dpbench.launch.nodes.follower import Parts, follow
from dpbench.launch.nodes.launcher import part_of
from dpbench.launch.nodes.messages import Prepared, Result, Run
from dpbench.launch.nodes.team import Lost
from dpbench.specs import TrialSpec
from tests.builders import trial_spec
from tests.launch.nodes.builders import meeting, node, request

ACROSS = trial_spec(nodes=(1, 1))


def order_of(trial: TrialSpec) -> Run:
    return Run(
        number=4,
        trial=trial,
        limit_seconds=1.0,
        address="127.0.0.1",
        port=4000,
        store_prefix="a secret",
    )


class IdleParts:
    """Runs no ranks: each trial lasts until it is stopped."""

    logs = Path("logs")

    def __init__(self, *_: object) -> None:
        self.running = Event()
        self.stopped = Event()

    def prepare(self, number: int, dataset: str) -> Prepared:
        return Prepared(number=number)

    def run(self, order: Run, stop: Event) -> Result:
        self.running.set()
        assert stop.wait(10)
        self.stopped.set()
        return Result(number=order.number)


class Following:
    """`follow` in a thread of its own, and how it ended."""

    def __init__(self) -> None:
        self.farewell: str | None = None
        self.error: BaseException | None = None
        self.said: list[str] = []

    def __call__(self, port: int) -> None:
        self._thread = Thread(target=self._follow, args=(port,))
        self._thread.start()

    def _follow(self, port: int) -> None:
        folder = Path("nowhere")
        try:
            self.farewell = follow(
                request(1, port),
                node(1),
                prepare=lambda _: None,
                logs=folder,
                traces=folder,
                say=self.said.append,
            )
        except Exception as error:
            self.error = error

    def end(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> IdleParts:
    idle = IdleParts()
    monkeypatch.setattr(follower, "Parts", lambda *_: idle)
    return idle


def test_it_runs_what_it_is_told_stops_when_told_and_ends_when_told(idle: IdleParts) -> None:
    following = Following()
    with meeting(following) as team:
        team.prepare("synthetic")
        with team.attempt(ACROSS, 60.0, "127.0.0.1", 4000):
            assert idle.running.wait(10)
            assert not idle.stopped.is_set()
        assert idle.stopped.wait(10)
    following.end()
    assert following.farewell is not None
    assert following.farewell.startswith("node 0 (host0) has no more to run")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (Interrupted(signal.SIGTERM), Interrupted, "node 0 (host0) was interrupted"),
        (DataError("no data"), LaunchError, "ended by node 0 (host0): no data"),
    ],
)
def test_it_ends_as_node_0_does_in_the_middle_of_a_trial(
    idle: IdleParts, error: DpbenchError, kind: type[DpbenchError], words: str
) -> None:
    following = Following()

    def lead() -> None:
        with meeting(following) as team, team.attempt(ACROSS, 60.0, "127.0.0.1", 4000):
            assert idle.running.wait(10)
            raise error

    with pytest.raises(type(error)):
        lead()
    following.end()
    assert idle.stopped.is_set()
    assert isinstance(following.error, kind)
    assert str(following.error) == words


def test_it_ends_its_ranks_and_itself_when_node_0_is_lost(idle: IdleParts) -> None:
    following = Following()
    with meeting(following) as team, team.attempt(ACROSS, 60.0, "127.0.0.1", 4000):
        assert idle.running.wait(10)
        team._members[1].close()  # as the kernel does for a process that was killed
        following.end()
        assert idle.stopped.is_set()
        assert isinstance(following.error, LaunchError)
        assert str(following.error).startswith("node 0 (host0) was lost: its connection ")


def test_its_own_failure_is_told(idle: IdleParts, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Result:
        raise ValueError("a bug")

    monkeypatch.setattr(idle, "run", fail)
    following = Following()
    with meeting(following) as team, team.attempt(ACROSS, 60.0, "127.0.0.1", 4000) as attempt:
        assert isinstance(attempt.answers[1].exception(10), Lost)
        assert team.lost_reason(1) == "node 1 (host1) was lost: it failed: a bug"
    following.end()
    assert isinstance(following.error, ValueError)


def test_data_that_cannot_be_prepared_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(dataset: str) -> Path | None:
        raise DataError(f"no {dataset} here")

    monkeypatch.setattr(follower, "in_child", lambda _: None)
    options = (("--arch", ACROSS.workload.architecture), ("--data", ACROSS.workload.dataset))
    own = Parts(request(1), node(1, options=options), missing, tmp_path, tmp_path)
    assert own.prepare(3, "mnist") == Prepared(number=3, error="no mnist here")
    order = order_of(ACROSS)
    assert own.run(order, Event()) == Result(number=4, error="no digits here")


def test_it_runs_no_architecture_that_its_own_command_did_not_name(tmp_path: Path) -> None:
    def never(dataset: str) -> Path | None:
        raise AssertionError(dataset)

    me = node(1, options=(("--arch", "mnist_cnn"),))
    workload = replace(ACROSS.workload, architecture="os:getpid")
    trial = replace(ACROSS, workload=workload)
    order = order_of(trial)
    error = Parts(request(1), me, never, tmp_path, tmp_path).run(order, Event()).error
    assert error == (
        "the order is for --arch os:getpid, the command here for mnist_cnn; "
        "expected the same command everywhere"
    )


def test_it_loads_no_dataset_of_somebodys_that_its_own_command_did_not_name(tmp_path: Path) -> None:
    def never(dataset: str) -> Path | None:
        raise AssertionError(dataset)

    me = node(1, options=(("--arch", "mnist_cnn"), ("--data", "mine.py:dataset")))
    error = Parts(request(1), me, never, tmp_path, tmp_path).prepare(3, "os:getpid").error
    assert error == (
        "the order is for --data os:getpid, the command here for mine.py:dataset; "
        "expected the same command everywhere"
    )


def test_a_node_knows_its_ranks_and_where_all_meet() -> None:
    trial = trial_spec(group_size=6, nodes=(3, 2, 1))
    order = order_of(trial)
    part = part_of(order, node(1, interface=None), request(1))
    assert part.ranks == range(3, 5)
    assert part.variables(local_rank=1) == {
        "RANK": "4",
        "ROLE_RANK": "4",
        "WORLD_SIZE": "6",
        "ROLE_WORLD_SIZE": "6",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4000",
        "DPBENCH_STORE_PREFIX": "a secret",
    }
