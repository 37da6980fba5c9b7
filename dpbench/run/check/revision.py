"""A Git revision of the user's code, checked out into a temporary folder.

The checkout shares objects, references and settings with the user's repository, as a worktree of
`git worktree add` does, but the repository does not know of it: nothing there changes, and
nothing stays registered if this process is killed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dpbench.errors import UsageError
from dpbench.git import run_git
from dpbench.messages import say
from dpbench.temporary import temporary_folder

PLAIN_CHECKOUT = (
    *("-c", "core.sparseCheckout=false", "-c", "core.fsmonitor=false"),
    *("-c", "submodule.recurse=false"),
)
"""Settings of the user's working tree that do not concern a copy of it."""


@contextmanager
def checked_out(revision: str, files: Sequence[str]) -> Iterator[tuple[Path, list[str]]]:
    """Check a revision out: this process's working directory in it, and the folders where it finds
    packages that are installed from the repository.

    Raises UsageError where there is no such revision, or one of the user's files is not in it.
    """
    here = Path.cwd().resolve()
    root = Path(_git(revision, here, "rev-parse", "--show-toplevel")).resolve()
    commit = _git(
        *(revision, here, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}"),
        otherwise="no such revision in this repository; expected a commit, branch or tag of it "
        "(a shallow clone has few: git fetch --unshallow)",
    )
    with temporary_folder() as scratch:
        tree = scratch.resolve() / "then"
        _check_out(revision, root, commit, tree)
        folder = tree / here.relative_to(root)
        for name in files or ["."]:
            if not (folder / name).exists():
                raise UsageError(
                    f"--against-ref {revision}: commit {commit[:12]} has no "
                    f"{here.relative_to(root) / name}; expected a revision that has it: commit it "
                    "first, or name a later one"
                )
        say(f"--against-ref {revision} is commit {commit[:12]}")
        if not _git(revision, root, "diff", commit, "--"):
            unchanged = f"nothing has changed since {revision} in the files that Git tracks"
            say(f"{unchanged}, so that a difference is noise")
        inside = [Path(p).resolve() for p in sys.path if p]
        mapped = [tree / p.relative_to(root) for p in inside if p.is_relative_to(root)]
        yield folder, [str(path) for path in (folder, *mapped, tree / "src")]


def _check_out(revision: str, repository: Path, commit: str, tree: Path) -> None:
    """Check out a commit of a repository, and of its submodules as far as these are checked out
    there, into a new folder."""
    common = repository / _git(revision, repository, "rev-parse", "--git-common-dir")
    # The files of gitrepository-layout(5) that make a folder a linked worktree.
    git_folder = tree.with_name(f"{tree.name}.git")
    git_folder.mkdir()
    (git_folder / "commondir").write_bytes(os.fsencode(common.resolve()) + b"\n")
    (git_folder / "HEAD").write_text(f"{commit}\n")
    tree.mkdir(exist_ok=True)
    (tree / ".git").write_bytes(b"gitdir: " + os.fsencode(git_folder) + b"\n")
    _git(
        *(revision, tree, *PLAIN_CHECKOUT, "read-tree", "--reset", "-u", commit),
        otherwise=f"{repository} has no commit {commit[:12]}; expected it there: git fetch",
    )
    for entry in _git(revision, tree, "ls-tree", "-r", "-z", commit).split("\0"):
        place, _, path = entry.partition("\t")
        if " commit " in place and (repository / path / ".git").exists():
            _check_out(revision, repository / path, place.split()[2], tree / path)


def _git(revision: str, folder: Path, *arguments: str, otherwise: str | None = None) -> str:
    """The output of git; raises UsageError with `otherwise`, or what git says, if it fails."""
    got = f"--against-ref {revision}"
    try:
        finished = run_git(*arguments, folder=folder)
    except OSError as error:
        raise UsageError(
            f"{got}: cannot run git ({error.strerror}); expected it to be installed"
        ) from None
    if finished.returncode != 0:
        said = otherwise or git_error(finished)
        if said.startswith("not a git repository"):
            said = f"{folder} is not in a Git repository; expected the folder of your code in one"
        raise UsageError(f"{got}: {said}")
    return finished.stdout.strip("\n")


def git_error(finished: subprocess.CompletedProcess[str]) -> str:
    """Git's error message in one line, from its cause on."""
    _, _, cause = f"\n{finished.stderr}".rpartition("\nfatal: ")
    return " ".join(cause.split()) or f"git ended with status {finished.returncode}"
