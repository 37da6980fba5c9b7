"""Who may take part is decided by node 0, for a reason that both sides can read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpbench.launch.nodes.admission import hello, refusal
from dpbench.launch.nodes.messages import Hello
from dpbench.launch.nodes.node import Node
from tests.launch.nodes.builders import node, request

LEAD = hello(request(0), node(0, options=(("--batch-sizes", "32"),)))
TAKEN = {0: "host0 leads"}


def comer(number: int = 1, *, who: Node | None = None, **changes: object) -> Hello:
    who = who or node(number, options=LEAD.node.options)
    return hello(replace(request(number), **changes), who)  # type: ignore[arg-type]


def other_node(*versions: tuple[str, ...]) -> Node:
    return node(1, options=LEAD.node.options, versions=versions)


def refused(comer: Hello, taken: dict[int, str] = TAKEN) -> str:
    found = refusal(comer, LEAD, taken)
    assert found is not None
    return found


def test_a_node_with_the_same_command_is_let_in() -> None:
    assert refusal(comer(), LEAD, TAKEN) is None


def test_other_devices_cores_and_python_are_let_in() -> None:
    other = node(1, options=LEAD.node.options, devices=("cpu",) * 8)
    other = replace(other, environment=replace(other.environment, python="3.13", cores=64))
    assert refusal(comer(who=other), LEAD, TAKEN) is None


def test_a_node_of_another_sweep_is_told_both_ids_and_disturbs_nobody() -> None:
    found = refused(comer(job_id="other"))
    assert "node 1 (host1) has --rdzv-id other" in found
    assert "node 0 (host0) leads --rdzv-id dpbench" in found


def test_a_number_is_given_once() -> None:
    found = refused(comer(), {**TAKEN, 1: "node 1 (host7) has --node-rank 1 already"})
    assert found == (
        "node 1 (host1) at 127.0.0.1 cannot join: node 1 (host7) has --node-rank 1 already"
    )
    assert "host0 leads" in refused(comer(0))


@pytest.mark.parametrize("number", [2, -1])
def test_there_is_no_node_beyond_the_last(number: int) -> None:
    assert "no such --node-rank; expected 1 to 1" in refused(comer(number))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (comer(node_count=3), "node 1 (host1) has --nnodes 3, node 0 (host0) --nnodes 2"),
        (
            comer(who=other_node(("dpbench", "0.1"), ("torch", "2.6"))),
            "node 1 (host1) differs from node 0 (host0): torch 2.6 instead of 2.13; expected",
        ),
        (
            comer(who=other_node(("torch", "2.13"), ())),
            "dpbench left out instead of 0.1; expected",
        ),
        (
            comer(who=node(1, options=(("--batch-sizes", "64"), ("--steps", "5")))),
            "--batch-sizes 64 instead of 32, --steps 5 instead of left out; expected",
        ),
    ],
)
def test_what_must_be_equal_is_refused_with_both_values(other: Hello, words: str) -> None:
    found = refused(other)
    assert words in found


def test_a_value_of_any_length_is_cut_and_cannot_tell_a_terminal_what_to_do() -> None:
    options = (("--batch-sizes", "\x1b[2J" + "8" * 900_000), *((f"--x{n}", "1") for n in range(99)))
    found = refused(comer(who=node(1, options=options)))
    assert "--batch-sizes \\x1b[2J888" in found
    assert found.isprintable()
    assert "and 92 more" in found
    assert len(found) < 2000
    long_id = refused(comer(job_id="x" * 900_000))
    assert len(long_id) < 1000
