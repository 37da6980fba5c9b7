"""Node 0 lets in who belongs to the sweep, says who is missing, and tells all how it ends."""

from __future__ import annotations

import re
import signal
import socket
import time
from contextlib import suppress
from threading import Thread

import psutil
import pytest

from dpbench.errors import DataError, Interrupted, LaunchError, UsageError
from dpbench.launch.nodes.admission import hello
from dpbench.launch.nodes.handshake import prove_as_lead
from dpbench.launch.nodes.messages import (
    Abort,
    End,
    Leave,
    Message,
    Prepare,
    Prepared,
    Result,
    Run,
    to_json,
)
from dpbench.launch.nodes.team import (
    Failed,
    Lost,
    Team,
    lead,
)
from tests.builders import trial_spec
from tests.launch.nodes.builders import TOKEN, Comer, meeting, node, request

ACROSS = trial_spec(nodes=(1, 1))


def eventually_lost(team: Team, number: int) -> str | None:
    """Why it was lost, as soon as that is noticed."""
    deadline = time.monotonic() + 10
    while team.lost_reason(number) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return team.lost_reason(number)


def test_all_nodes_come_in_any_order_and_are_told_that_it_is_over() -> None:
    said: list[str] = []
    second, first = Comer(2, node_count=3), Comer(1, node_count=3)
    with meeting(second, first, node_count=3, said=said) as team:
        assert [each.name for each in team.nodes] == [f"node {n} (host{n})" for n in range(3)]
        assert team.lost_reason(1) is None
    assert first.hears() == second.hears() == End()
    waiting = [line.partition(" at ")[0] for line in said if line.startswith("waiting")]
    assert waiting == ["waiting for node 1 and node 2", "waiting for node 1"]
    assert "node 2 (host2) with 2 devices came from 127.0.0.1" in said


def test_a_missing_node_is_named_when_the_time_is_over_and_the_others_are_told() -> None:
    first = Comer(1, node_count=3)
    with (
        pytest.raises(LaunchError, match=r"^node 2 did not come to 127.0.0.1:\d+ within 300 ms"),
        meeting(first, node_count=3, join_timeout_seconds=0.3),
    ):
        pass
    farewell = first.hears()
    assert isinstance(farewell, End)
    assert "node 2 did not come" in (farewell.error or "")


def test_who_does_not_belong_to_the_sweep_is_refused_and_the_others_go_on() -> None:
    said: list[str] = []
    foreign, again = Comer(node_count=2), Comer(node_count=3)
    with meeting(
        foreign, Comer(node_count=3), again, Comer(2, node_count=3), said=said, node_count=3
    ):
        pass
    assert "node 1 (host1) has --nnodes 2, node 0 (host0) --nnodes 3" in str(foreign.error)
    assert "node 1 (host1) at 127.0.0.1 has --node-rank 1 already" in str(again.error)
    assert {type(foreign.error), type(again.error)} == {UsageError}
    assert f"refused: {again.error}" in said


def test_a_node_of_another_version_is_refused_and_the_right_one_may_still_come() -> None:
    said: list[str] = []
    other = Comer(me=node(1, versions=(("dpbench", "0.1"), ("torch", "2.6"))))
    with meeting(other, Comer(), said=said) as team:
        assert team.lost_reason(1) is None
    assert "torch 2.6 instead of 2.13" in str(other.error)
    assert f"refused: {other.error}" in said


def test_when_the_time_is_over_node_0_says_whom_it_refused_and_why() -> None:
    other = Comer(me=node(1, versions=(("dpbench", "0.1"), ("torch", "2.6"))))
    with (
        pytest.raises(UsageError, match=r"^node 1 did not come.*refused: .*2.6 instead of 2.13"),
        meeting(other, join_timeout_seconds=1.0),
    ):
        pass


def test_a_stranger_is_told_nothing_and_disturbs_nobody() -> None:
    answers: list[bytes] = []

    def stranger(port: int) -> None:
        for words in (b"GET / HTTP/1.1\r\n\r\n", to_json(hello(request(1), node(1))) + b"\n"):
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(words)
                with suppress(ConnectionError):
                    answers.append(connection.recv(2**16))

    said: list[str] = []
    with meeting(stranger, Comer(), said=said):
        pass
    assert not any(answers)
    words = "refused a connection from 127.0.0.1: it is no node of dpbench"
    assert any(line.startswith(words) for line in said)


def test_a_node_with_another_token_is_told_that_and_nothing_else() -> None:
    said: list[str] = []
    other = Comer(token="a token of another sweep")
    with meeting(other, Comer(), said=said):
        pass
    assert isinstance(other.error, UsageError)
    assert "what listens there does not know the token of this node; expected" in str(other.error)
    assert "host0" not in str(other.error)
    assert any("it does not know the token" in line for line in said)


def test_a_node_that_leaves_before_all_are_there_may_be_replaced() -> None:
    said: list[str] = []
    early = Comer(node_count=3)

    def leave(_: int) -> None:
        early.channel.send(Leave(reason="it was interrupted"))
        while not any("another may take its place" in line for line in said):
            time.sleep(0.01)

    with meeting(
        early, leave, Comer(node_count=3), Comer(2, node_count=3), said=said, node_count=3
    ):
        assert "node 1 (host1) was lost: it was interrupted; another may take its place" in said


@pytest.mark.parametrize(
    ("error", "farewell"),
    [
        (Interrupted(signal.SIGTERM), End(signal=signal.SIGTERM)),
        (KeyboardInterrupt(), End(signal=signal.SIGINT)),
        (UsageError("no such thing"), End(error="no such thing")),
    ],
)
def test_the_nodes_hear_how_node_0_ended(error: BaseException, farewell: Message) -> None:
    other = Comer()
    with pytest.raises(type(error)), meeting(other):
        raise error
    assert other.hears() == farewell


def test_a_lost_node_is_known_and_not_replaced() -> None:
    first = Comer()
    ports: list[int] = []
    with meeting(ports.append, first) as team:
        first.channel.close()
        reason = "node 1 (host1) was lost: its connection was closed"
        assert eventually_lost(team, 1) == reason
        late = Comer()
        late(ports[0])
        assert f"{reason}, and the sweep has gone on without it" in str(late.error)


def test_a_dataset_is_prepared_everywhere_or_the_node_is_named() -> None:
    other = Comer()

    def answer(error: str | None) -> None:
        order = other.hears()
        assert isinstance(order, Prepare)
        assert order.dataset == "digits"
        other.channel.send(Prepared(number=order.number, error=error))

    with meeting(other) as team:
        for error in (None, "no such file"):
            answering = Thread(target=answer, args=(error,))
            answering.start()
            if error is None:
                team.prepare("digits")
            else:
                with pytest.raises(DataError, match=r"^node 1 \(host1\): no such file"):
                    team.prepare("digits")
            answering.join()
        Thread(target=other.channel.close).start()
        with pytest.raises(
            LaunchError, match=r"node 1 \(host1\) was lost.*; start the same commands"
        ):
            team.prepare("digits")


def test_a_trial_is_ordered_followed_and_stopped() -> None:
    other = Comer()
    with meeting(other) as team:
        with team.attempt(ACROSS, 60.0, "127.0.0.1", 4000) as attempt:
            order = other.hears()
            assert isinstance(order, Run)
            assert (order.trial, order.limit_seconds, order.port) == (ACROSS, 60.0, 4000)
            other.channel.send(Result(number=order.number - 1))  # of a trial before
            other.channel.send(Result(number=order.number, error="no memory"))
            error = attempt.answers[1].exception(10)
            assert isinstance(error, Failed)
            assert error.answer.error == "no memory"
        with team.attempt(ACROSS, 60.0, "127.0.0.1", 4000):
            assert isinstance(other.hears(), Run)
        assert other.hears() == Abort(number=order.number + 1)
        with team.attempt(ACROSS, 60.0, "127.0.0.1", 4000) as attempt:
            other.channel.close()
            assert isinstance(attempt.answers[1].exception(10), Lost)
            assert attempt.awaited == []


def test_a_node_that_is_given_up_is_told() -> None:
    other = Comer()
    with meeting(other) as team:
        team.give_up(1, "it does not end")
        assert other.hears() == End(error="it does not end")
        assert other.ended.wait(10)
        assert team.lost_reason(1) == "it does not end"


def test_node_0_listens_at_its_address_only() -> None:
    ports: list[int] = []
    with meeting(ports.append, Comer()):
        listening = [
            each.laddr.ip
            for each in psutil.Process().net_connections()
            if each.status == psutil.CONN_LISTEN and each.laddr.port == ports[0]
        ]
        assert listening == ["127.0.0.1"]


def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        asked = request(0, taken.getsockname()[1])
        with (
            pytest.raises(
                UsageError, match=f"{asked.endpoint}: cannot listen .* already; expected"
            ),
            lead(asked, node(0), say=lambda _: None),
        ):
            pass


def test_a_node_that_finds_nobody_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    alone = Comer(join_timeout_seconds=0.1)
    alone(port)
    assert isinstance(alone.error, LaunchError)
    assert str(alone.error).startswith(f"node 0 did not answer at 127.0.0.1:{port} for 100 ms (")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-OpenSSH\r\n", "node 0 did not answer at .* \\(it closed the connection\\)"),
        (b"", "node 0 did not answer at .* \\(it closed the connection\\)"),
        (b"x" * 10_000, "what listens there does not know the token of this node"),
    ],
    ids=["ssh", "nothing", "anything"],
)
def test_something_else_at_the_endpoint_is_told_apart(answer: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        comer = Comer(join_timeout_seconds=0.5)
        joining = Thread(target=comer, args=(server.getsockname()[1],))
        joining.start()
        server.settimeout(2)
        with suppress(TimeoutError):
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    connection.recv(2**16)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(2**16):
                        pass
        joining.join()
    assert re.search(words, str(comer.error))


def test_a_node_that_is_turned_away_tries_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        comer = Comer()
        joining = Thread(target=comer, args=(server.getsockname()[1],))
        joining.start()
        for _ in range(5):  # as from a node 0 that has no room, or is just starting
            server.accept()[0].close()
        connection, _ = server.accept()
        with connection:
            prove_as_lead(connection, TOKEN)
        joining.join()
    assert "did not let this node in: its connection was closed" in str(comer.error)
