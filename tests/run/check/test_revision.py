"""Checking a revision out of real repositories, which must not change."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dpbench.errors import UsageError
from dpbench.messages import said_to
from dpbench.run.check.revision import checked_out, git_error
from tests.cli.command import ROOT, git

CHECK_OUT = f"""
import os, sys
sys.path[0] = {str(ROOT)!r}
from dpbench.run.check.revision import checked_out
with checked_out("HEAD", ["model.py"]) as (folder, _):
    print("then:", (folder / "model.py").read_text())
    if sys.argv[1:] == ["die"]:
        os._exit(9)
"""
COMMAND = shlex.join([sys.executable, "-c", f"exec({CHECK_OUT!r})"])  # one line, for rebase


def commit(folder: Path, text: str) -> None:
    (folder / "model.py").write_text(text)
    git("add", "model.py", cwd=folder)
    git("commit", "-qm", text, "--no-verify", cwd=folder)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git("init", "-q", "-b", "main", cwd=folder)
    commit(folder, "old")
    monkeypatch.chdir(folder)
    return folder


def write_hook(repository: Path, name: str, command: str) -> None:
    hook = repository / ".git" / "hooks" / name
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\n{command}\n")
    hook.chmod(0o755)


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("linked", [False, True])
def test_a_hook_that_checks_out_the_revision_before_keeps_the_commit(
    linked: bool, repository: Path, tmp_path: Path
) -> None:
    write_hook(repository, "pre-commit", f"exec {COMMAND}")
    folder = repository
    if linked:
        folder = tmp_path / "linked"
        git("worktree", "add", "-q", str(folder), cwd=repository)
    (folder / "model.py").write_text("new")
    said = git("commit", "-qm", "new", "model.py", cwd=folder)
    assert "then: old" in said
    assert git("show", "HEAD:model.py", cwd=folder) == "new"
    assert git("status", "--short", cwd=folder) == ""
    assert git("worktree", "list", cwd=repository).count("\n") == 1 + linked


def test_variables_of_another_repository_are_not_followed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git("init", "-q", cwd=other)
    commit(other, "another repository's")
    before = files(tmp_path)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    with checked_out("HEAD", ["model.py"]) as (folder, _):
        assert (folder / "model.py").read_text() == "old"
    assert files(tmp_path) == before


def test_a_process_that_is_killed_leaves_nothing_in_the_repository(repository: Path) -> None:
    before = files(repository)
    done = subprocess.run([*shlex.split(COMMAND), "die"], cwd=repository)
    assert done.returncode == 9
    assert files(repository) == before
    assert git("worktree", "list", cwd=repository).count("\n") == 1


def test_a_submodule_is_checked_out_at_the_commit_that_the_revision_has(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    git("init", "-q", cwd=whole)
    git("submodule", "add", "-q", str(repository), "part", cwd=whole)
    git("commit", "-qm", "one", cwd=whole)
    commit(whole / "part", "new")
    before = files(whole)
    monkeypatch.chdir(whole)
    with checked_out("HEAD", ["part/model.py"]) as (folder, _):
        assert (folder / "part" / "model.py").read_text() == "old"
    monkeypatch.chdir(whole / "part")
    with checked_out("HEAD", ["model.py"]) as (folder, _):
        assert (folder / "model.py").read_text() == "new"
    assert files(whole) == before


def test_a_shallow_clone_and_a_sparse_one_are_checked_out_whole(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "package").mkdir()
    (repository / "package" / "layers.py").write_text("layers")
    git("add", ".", cwd=repository)
    commit(repository, "new")
    clone = tmp_path / "clone"
    git("clone", "-q", "--depth", "1", f"file://{repository}", str(clone), cwd=tmp_path)
    git("sparse-checkout", "set", "nothing", cwd=clone)
    monkeypatch.chdir(clone)
    with checked_out("HEAD", ["model.py"]) as (folder, _):
        assert (folder / "package" / "layers.py").read_text() == "layers"


def test_a_revision_runs_no_hook_and_untracked_files_do_not_make_it_differ(
    repository: Path, tmp_path: Path
) -> None:
    write_hook(repository, "post-checkout", f"touch {tmp_path / 'trap'}")
    (repository / "new.py").write_text("")
    notes = list[str]()
    with said_to(notes.append), checked_out("HEAD", ["model.py"]):
        unchanged = "nothing has changed since HEAD in the files that Git tracks"
        assert notes[1:] == [f"{unchanged}, so that a difference is noise"]
    assert not (tmp_path / "trap").exists()


def test_an_error_of_git_begins_with_its_cause() -> None:
    text = (
        "fatal: detected dubious ownership\nTo add an exception, call:\n\n\tgit config --global\n"
    )
    said = git_error(subprocess.CompletedProcess([], 128, "", text))
    assert said == "detected dubious ownership To add an exception, call: git config --global"


def test_a_folder_without_a_repository_and_a_machine_without_git_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^--against-ref HEAD: {tmp_path} is not in a Git repos"):
        checked_out("HEAD", []).__enter__()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"^--against-ref HEAD: cannot run git .*expected"):
        checked_out("HEAD", []).__enter__()
