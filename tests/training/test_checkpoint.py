"""Checkpoints come back to the bit, or are refused in one line; a folder keeps whole ones."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench import files
from dpbench.errors import FileError, UsageError
from dpbench.launch.fork_server import fork_server
from dpbench.training import checkpoint as checkpoints
from dpbench.training.checkpoint import (
    Checkpoint,
    from_bytes,
    latest_checkpoint,
    save_checkpoint,
    to_bytes,
)
from tests.training.jobs import checkpoint, trained

CPU = torch.device("cpu")
PLAIN = ("spec", "position", "scaler", "samples_sha256")
TENSORS = ("model", "optimizers", "random_states")


def step_of(path: Path) -> int:
    """Of a checkpoint that must be whole."""
    return from_bytes(path.read_bytes(), str(path)).position.step


def saved(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def reason(data: bytes) -> str:
    """The one line about these bytes."""
    with pytest.raises(UsageError) as caught:
        from_bytes(data, "step-1.pt")
    words = str(caught.value)
    assert words.startswith("step-1.pt: ")
    assert words.isprintable()
    return words.removeprefix("step-1.pt: ")


def test_it_comes_back_as_it_was() -> None:
    made = checkpoint(scaler={"scale": 1024.0})
    made.position.shares = (2.0, 1.0)
    read = from_bytes(to_bytes(made), "runs/a/best.pt")
    assert read.file == "runs/a/best.pt"
    for name in PLAIN:
        assert getattr(read, name) == getattr(made, name), name
    for name in TENSORS:
        torch.testing.assert_close(getattr(read, name), getattr(made, name), rtol=0, atol=0)
    assert {field.name for field in fields(Checkpoint)} == {*PLAIN, *TENSORS, "file"}


def test_torch_alone_can_read_it() -> None:
    content = torch.load(io.BytesIO(to_bytes(checkpoint())), weights_only=True)
    assert content["position"]["step"] == 7
    module, _ = trained()
    module.load_state_dict(content["model"])
    assert content["spec"]["workload"]["architecture"] == "tests.training.jobs:Plain"


def test_damaged_and_foreign_files_are_refused_in_one_line() -> None:
    whole = to_bytes(checkpoint())
    weights = checkpoint().model["0.weight"].numpy().tobytes()
    ours = torch.load(io.BytesIO(whole), weights_only=True)
    without_states = {name: part for name, part in ours.items() if name != "random_states"}
    for data, words in (
        (b"", "it is damaged, or no checkpoint (BadZipFile: "),
        (whole[: len(whole) // 2], "it is damaged, or no checkpoint (BadZipFile: "),
        (whole.replace(weights, bytes(len(weights))), "it is damaged, or no checkpoint (BadZip"),
        (saved(trained()[0].state_dict()), "this is no checkpoint of dpbench train"),
        (saved({**ours, "format_version": 1}), "this is no checkpoint of dpbench train"),
        (saved({**ours, "position": {"step": "7"}}), "Position.step: input should be a valid int"),
        (saved(without_states), "'random_states'"),
    ):
        assert reason(data).startswith(words)


class Command:
    """A value as an attacker would write it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def test_code_in_a_file_is_not_executed(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    hostile = Command(planted)
    for data in (saved({"model": hostile}), pickle.dumps(hostile)):
        assert "it is damaged, or no checkpoint" in reason(data)
        assert not planted.exists()
    pickle.loads(pickle.dumps(hostile))  # the same bytes elsewhere
    assert planted.exists()


def test_the_latest_and_the_best_are_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    for step in (1, 2, 30, 4000):
        path = save_checkpoint(tmp_path, checkpoint(step), keep=2, best=step == 2)
    assert path == tmp_path / "step-00004000.pt"
    assert names(tmp_path) == ["best.pt", "notes.txt", "step-00000030.pt", "step-00004000.pt"]
    assert (step_of(tmp_path / "best.pt"), step_of(path)) == (2, 4000)
    save_checkpoint(tmp_path, checkpoint(4001), keep=10, best=False)
    assert len(names(tmp_path)) == 5
    assert latest_checkpoint(tmp_path / "nothing") is None
    for number in ("100000000", "99999999", "00000012", "200000000-old", "x", ""):
        (tmp_path / f"step-{number}.pt").touch()
    (tmp_path / "step-200000000.pt.0123.tmp").touch()
    os.utime(tmp_path / "step-00000012.pt", (4e9, 4e9))
    assert latest_checkpoint(tmp_path) == tmp_path / "step-100000000.pt"


def test_each_checkpoint_is_also_written_whole_to_the_file_that_the_user_named(
    tmp_path: Path,
) -> None:
    named = tmp_path / "elsewhere" / "mine.pt"
    named.parent.mkdir()
    link = tmp_path / "link.pt"
    link.symlink_to(named)
    for step in (1, 2):
        path = save_checkpoint(tmp_path, checkpoint(step), keep=1, best=False, also=str(link))
        assert named.read_bytes() == path.read_bytes()
    assert link.is_symlink()
    shutil.rmtree(named.parent)
    with pytest.raises(FileError, match=r"cannot write .*link.pt: No such "):
        save_checkpoint(tmp_path, checkpoint(3), keep=1, best=False, also=str(link))
    assert step_of(tmp_path / "step-00000003.pt") == 3


def kill_at(owner: Any, name: str, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process end by kill -9 when it calls the function for that time, from 1."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def wrapped(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapped)


AFTER_A_KILL = {
    "saving": (checkpoints.torch, "save", 1, (2, 1)),
    "flushing": (os, "fsync", 1, (2, 1)),
    "naming the best": (Path, "replace", 1, (2, 1)),
    "naming the step": (Path, "replace", 2, (2, 3)),
    "removing the oldest": (Path, "unlink", 1, (3, 3)),
}
"""Where a kill comes, and the steps of the latest and of the best checkpoint after it."""


def die_everywhere(folder: Path) -> None:
    """Save step 3 as the best into folders that hold steps 1, which is the best, and 2.

    This runs in a process without threads, whose copies each die at one point.
    """
    torch.set_num_threads(1)
    for where, (owner, name, call, _) in AFTER_A_KILL.items():
        if not (copy := os.fork()):
            kill_at(owner, name, call, pytest.MonkeyPatch())
            save_checkpoint(folder / where, checkpoint(3), keep=2, best=True)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(copy, 0)[1]) == signal.SIGKILL, where


def test_kill_9_at_any_point_leaves_whole_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    save_checkpoint(tmp_path / "before", checkpoint(1), keep=2, best=True)
    save_checkpoint(tmp_path / "before", checkpoint(2), keep=2, best=False)
    for where in AFTER_A_KILL:
        shutil.copytree(tmp_path / "before", tmp_path / where)
    process = fork_server().Process(target=die_everywhere, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    for where, (_, _, _, steps) in AFTER_A_KILL.items():
        found = latest_checkpoint(tmp_path / where)
        assert found is not None
        assert (step_of(found), step_of(tmp_path / where / "best.pt")) == steps, where
        # The next start clears up, and trains on as if nothing had been.
        files.remove_leftovers(tmp_path / where)
        save_checkpoint(tmp_path / where, checkpoint(3), keep=2, best=True)
        assert names(tmp_path / where) == ["best.pt", "step-00000002.pt", "step-00000003.pt"]
        assert step_of(tmp_path / where / "best.pt") == 3
