"""What a shell offers, asked as bash asks."""

from __future__ import annotations

import pytest

from dpbench.cli.app import run
from dpbench.cli.options import complete_list
from dpbench.specs import OPTIMIZERS


def asked(monkeypatch: pytest.MonkeyPatch, words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The answer to bash, with the cursor at the end of `words`."""
    monkeypatch.setenv("_DPBENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    with pytest.raises(SystemExit) as ended:
        run([])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("dpbench swe", ["sweep"]),
        ("dpbench sweep --lr", ["--lr", "--lrs", "--lr-scaling"]),
        ("dpbench sweep --implementations torch-ddp", ["torch-ddp", "torch-ddp-static"]),
        ("dpbench sweep --implementations dp,sin", ["dp,single"]),
        ("dpbench sweep --backends gloo,", ["gloo,nccl", "gloo,shm", "gloo,shm+gloo"]),
        ("dpbench sweep --sync-backend s", ["shm", "shm+gloo"]),
        ("dpbench sweep --arch mnist", ["mnist_cnn"]),
        ("dpbench sweep --data dig", ["digits"]),
        ("dpbench sweep --optimizer ad", [name for name in OPTIMIZERS if name.startswith("ad")]),
        ("dpbench sweep --scaling w", ["weak"]),
        ("dpbench sweep --lr-scaling sq", ["sqrt"]),
        ("dpbench plot throughput,eff", ["throughput,efficiency", "throughput,efficiency-map"]),
        ("dpbench sweep --batch-sizes 1", []),
        ("dpbench train --lr-", ["--lr-scaling", "--lr-warmup"]),
        ("dpbench train --dtype b", ["bf16"]),
        ("dpbench train --balance s", ["speed"]),
        ("dpbench train --evaluate o", ["off"]),
        ("dpbench train --last-window d", ["drop"]),
    ],
)
def test_names_are_offered(
    words: str,
    offered: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert asked(monkeypatch, words, capsys).split() == offered


def test_a_name_of_a_list_is_not_offered_twice() -> None:
    assert complete_list("a,b,", ["a", "b", "c"]) == ["a,b,c"]
    assert complete_list("", ["a", "b"]) == ["a", "b"]


def test_the_script_for_a_shell_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "zsh")
    with pytest.raises(SystemExit) as ended:
        run(["--show-completion"])
    assert ended.value.code == 0
    assert "compdef _dpbench_completion dpbench" in capsys.readouterr().out
