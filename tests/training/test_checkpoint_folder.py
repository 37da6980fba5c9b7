from __future__ import annotations

import io
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
import torch

from dpbench import files
from dpbench.errors import StoreError
from dpbench.launch.server import fork_server
from dpbench.training import archive
from dpbench.training.checkpoint import from_bytes
from dpbench.training.checkpoint_folder import CheckpointFolder, latest_checkpoint
from tests.training.checkpoint_samples import checkpoint


def step_of(path: Path) -> int:
    """Of a checkpoint that must be whole."""
    return from_bytes(path.read_bytes(), str(path)).step


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_latest_and_the_best_are_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with CheckpointFolder(tmp_path, keep=2) as folder:
        for step in (1, 2, 30, 4000):
            path = folder.save(checkpoint(step), best=step == 2)
    assert path == tmp_path / "step-00004000.pt"
    assert names(tmp_path) == ["best.pt", "notes.txt", "step-00000030.pt", "step-00004000.pt"]
    assert step_of(tmp_path / "best.pt") == 2
    assert step_of(path) == 4000
    with CheckpointFolder(tmp_path, keep=10) as folder:
        folder.save(checkpoint(4001), best=False)
    assert len(names(tmp_path)) == 5


def test_the_latest_is_that_of_the_most_steps(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "nothing") is None
    for number in ("100000000", "99999999", "00000012", "x", ""):
        (tmp_path / f"step-{number}.pt").touch()
    (tmp_path / "step-200000000.pt.0123.tmp").touch()
    os.utime(tmp_path / "step-00000012.pt", (4e9, 4e9))
    assert latest_checkpoint(tmp_path) == tmp_path / "step-100000000.pt"


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    dump = archive.dump

    def slow(content: Any, file: IO[bytes]) -> None:
        assert released.wait(10)
        dump(content, file)

    monkeypatch.setattr(archive, "dump", slow)
    living = torch.ones(3)
    with CheckpointFolder(tmp_path, keep=9) as folder:
        folder.save(checkpoint(1, model={"w": living}), best=False)
        living.zero_()  # the optimizer's next step
        assert latest_checkpoint(tmp_path) is None
        threading.Timer(0.1, released.set).start()
        folder.save(checkpoint(2, model={"w": living}), best=False)  # waits, and skips nothing
        assert latest_checkpoint(tmp_path) == tmp_path / "step-00000001.pt"
    first = from_bytes((tmp_path / "step-00000001.pt").read_bytes(), "here")
    assert first.model["w"].tolist() == [1.0, 1.0, 1.0]
    assert step_of(tmp_path / "step-00000002.pt") == 2


def test_a_full_disk_is_told_at_the_next_save(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=9)
    folder.save(checkpoint(1), best=True)
    large = checkpoint(2, model={"w": torch.zeros(200_000)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        folder.save(large, best=True)
        with pytest.raises(StoreError) as caught:
            folder.save(checkpoint(3), best=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(caught.value) == (
        f"cannot write {tmp_path}/step-00000002.pt: File too large; the checkpoints before it are "
        "whole, and --resume auto goes on from the latest of them"
    )
    assert names(tmp_path) == ["best.pt", "step-00000001.pt"]
    assert step_of(tmp_path / "best.pt") == 1
    folder.close()


def test_a_folder_that_is_gone_is_told_at_the_end(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", keep=1)
    shutil.rmtree(folder.folder)
    folder.save(checkpoint(1), best=False)
    with pytest.raises(StoreError, match=r"step-00000001\.pt: No such file or directory"):
        folder.close()
    with pytest.raises(ValueError, match="what ended the training") as caught:
        end_training(folder.folder)
    assert "No such file or directory" in caught.value.__notes__[0]


def end_training(folder: Path) -> None:
    with CheckpointFolder(folder, keep=1) as again:
        shutil.rmtree(folder)
        again.save(checkpoint(1), best=False)
        raise ValueError("what ended the training")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot keep checkpoints in .*: Not a directory"):
        CheckpointFolder(tmp_path / "file" / "checkpoints", keep=1)
    with pytest.raises(ValueError, match="got 0, expected at least 1"):
        CheckpointFolder(tmp_path, keep=0)


def kill_at(owner: Any, name: str, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process ends by kill -9 when it calls the function for that time, from 1."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def wrapped(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapped)


def write_half(content: Any, file: IO[bytes]) -> None:
    whole = io.BytesIO()
    torch.save(content, whole)
    file.write(whole.getvalue()[: whole.tell() // 2])
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def save_and_die(folder: Path, where: str) -> None:
    """Saves step 3 as the best, into a folder that holds steps 1, which is the best, and 2."""
    monkeypatch = pytest.MonkeyPatch()
    if where == "writing":
        monkeypatch.setattr(archive, "dump", write_half)
    points = {
        "flushing": (os, "fsync", 1),
        "linking": (os, "link", 1),
        "naming the best": (Path, "replace", 1),
        "naming the step": (Path, "replace", 2),
        "flushing the folder": (files, "flush_folder", 2),
        "removing the oldest": (Path, "unlink", 2),
    }
    if where in points:
        kill_at(*points[where], monkeypatch)
    with CheckpointFolder(folder, keep=2) as checkpoints:
        checkpoints.save(checkpoint(3), best=True)


AFTER_A_KILL = {
    "writing": (2, 1),
    "flushing": (2, 1),
    "linking": (2, 1),
    "naming the best": (2, 1),
    "naming the step": (2, 3),
    "flushing the folder": (3, 3),
    "removing the oldest": (3, 3),
}
"""The steps of the latest and of the best checkpoint that are then there."""


def die_everywhere(folder: Path) -> None:
    """In a process without threads, whose copies each die at one point; its status tells."""
    torch.set_num_threads(1)
    for where in AFTER_A_KILL:
        if not (copy := os.fork()):
            save_and_die(folder / where, where)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(copy, 0)[1]) == signal.SIGKILL, where


def test_kill_9_at_any_point_leaves_whole_checkpoints(tmp_path: Path) -> None:
    with CheckpointFolder(tmp_path / "before", keep=2) as folder:
        folder.save(checkpoint(1), best=True)
        folder.save(checkpoint(2), best=False)
    for where in AFTER_A_KILL:
        shutil.copytree(tmp_path / "before", tmp_path / where)
    process = fork_server().Process(target=die_everywhere, args=(tmp_path,))
    process.start()
    process.join(20)
    assert process.exitcode == 0
    for where, (newest, best) in AFTER_A_KILL.items():
        found = latest_checkpoint(tmp_path / where)
        assert found is not None
        assert (step_of(found), step_of(tmp_path / where / "best.pt")) == (newest, best), where
        for path in (tmp_path / where).glob("step-*.pt"):
            assert step_of(path) in (1, 2, 3)
        go_on(tmp_path / where)


def go_on(folder: Path) -> None:
    """The next start clears up, and trains on as if nothing had been."""
    with CheckpointFolder(folder, keep=2) as checkpoints:
        assert not list(folder.glob("*.tmp"))
        checkpoints.save(checkpoint(3), best=True)
    assert names(folder) == ["best.pt", "step-00000002.pt", "step-00000003.pt"]
    assert step_of(folder / "best.pt") == 3


def test_each_checkpoint_is_also_written_whole_to_the_file_that_the_user_named(
    tmp_path: Path,
) -> None:
    kept, named = tmp_path / "checkpoints", tmp_path / "elsewhere" / "mine.pt"
    named.parent.mkdir()
    link = tmp_path / "link.pt"
    link.symlink_to(named)
    with CheckpointFolder(kept, keep=1, also=link) as folder:
        for step in (1, 2):
            path = folder.save(checkpoint(step), best=False)
            folder.wait()
            assert named.read_bytes() == path.read_bytes()
    assert step_of(named) == 2
    assert link.is_symlink()
    assert names(named.parent) == ["mine.pt"]


def test_where_the_named_file_cannot_be_written_the_checkpoint_is_said_to_be_whole(
    tmp_path: Path,
) -> None:
    named = tmp_path / "gone" / "mine.pt"
    with (
        pytest.raises(StoreError, match=rf"cannot write {named}: No such .* is whole in .*step-"),
        CheckpointFolder(tmp_path / "checkpoints", keep=1, also=named) as folder,
    ):
        folder.save(checkpoint(1), best=False)
    assert step_of(tmp_path / "checkpoints" / "step-00000001.pt") == 1
