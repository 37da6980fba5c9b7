from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dpbench.cli.app import run
from dpbench.cli.demo import DEMOS
from dpbench.training.demos import iris
from dpbench.training.demos.section import Check, Checks, Section, Table


@pytest.fixture
def two_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    def sections() -> Iterator[Section]:
        yield "A flower:"
        yield Table(headers=("Name", "Petals"), rows=(("iris", "3"),), words=("Name",))
        yield Checks(
            checks=(
                Check(claim="it is blue", holds=True, found="blue"),
                Check(claim="one thread", holds=torch.get_num_threads() != 1, found="1"),
            )
        )

    monkeypatch.setattr(iris, "run", sections)


def test_without_a_name_the_demos_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(DEMOS) == ["dp-train", "iris"]


def test_an_unknown_name_gets_the_nearest_one_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "iriss"]) == 2
    assert capsys.readouterr().err == (
        "dpbench: unknown demo 'iriss'. Did you mean 'iris'? Known: dp-train, iris.\n"
    )


@pytest.mark.usefixtures("two_checks")
def test_a_check_that_fails_is_marked_and_is_the_exit_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    threads = torch.get_num_threads()
    assert run(["demo", "iris"]) == 1
    assert torch.get_num_threads() == threads
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        "A flower:",
        "",
        "Name  Petals",
        "----  ------",
        "iris       3",
        "",
        "✓  it is blue  blue",
        "✗  one thread  1",
    ]
    assert captured.err == "dpbench: demo iris: 1 of 2 checks hold\n"
