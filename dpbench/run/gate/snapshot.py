"""A revision of a git repository, written out as files."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dpbench.errors import UsageError
from dpbench.records.environment import git, git_bytes

READING_SECONDS = 120.0
"""A large repository holds gigabytes."""
LINK, SUBMODULE, EXECUTABLE = "120000", "160000", "100755"


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A revision that was written out."""

    commit: str
    repository: Path
    """The root of the repository that it is of."""
    root: Path
    """What that root is there."""
    working_directory: Path
    """What the working directory of this process is there."""
    submodules: tuple[str, ...] = ()
    """Paths that are empty there: the files of a submodule are stored in another repository."""


def repository_root(option: str) -> Path:
    """The root of the repository that holds the working directory; UsageError without one."""
    try:
        return Path(git("rev-parse", "--show-toplevel"))
    except (OSError, subprocess.SubprocessError):
        raise UsageError(
            f"{option}: {Path.cwd()} is in no git repository; run it where the model's file is kept"
        ) from None


def write_snapshot(revision: str, folder: Path, option: str) -> Snapshot:
    """Writes all files of `revision` into `folder`, which is empty.

    Raises UsageError for a revision that there is not, and for one without this directory.
    """
    root = repository_root(option)
    if not revision or revision.startswith("-"):
        raise UsageError(
            f"{option} {shlex.quote(revision)}: expected a revision of git's, as origin/main"
        )
    try:
        commit = git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except subprocess.SubprocessError:
        raise UsageError(
            f"{option} {revision}: git knows no such revision in {root}; fetch it first (in a "
            "workflow: actions/checkout with fetch-depth: 0)"
        ) from None
    submodules = []
    for entry in _entries(commit, root):
        if entry.mode == SUBMODULE:
            submodules.append(entry.name)
        else:
            _write(entry, folder)
    here = folder / Path.cwd().resolve().relative_to(root.resolve())
    if not here.is_dir():
        raise UsageError(f"{option} {revision}: that revision has no folder {Path.cwd()}")
    return Snapshot(
        commit=commit,
        repository=root.resolve(),
        root=folder,
        working_directory=here,
        submodules=tuple(submodules),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    mode: str
    name: str
    content: bytes


def _entries(commit: str, root: Path) -> Iterator[_Entry]:
    """All files of a commit, a symbolic link with its target as content; submodules without."""
    listed = git_bytes("ls-tree", "-r", "-z", "--full-tree", commit)
    rows = [row.partition(b"\t") for row in listed.split(b"\0") if row]
    found = [(*head.decode().split(" ")[:3], os.fsdecode(name)) for head, _, name in rows]
    for mode, _, _, name in found:
        if mode == SUBMODULE:
            yield _Entry(mode, name, b"")
    blobs = [(mode, object_id, name) for mode, _, object_id, name in found if mode != SUBMODULE]
    asked = "".join(f"{object_id}\n" for _, object_id, _ in blobs)
    contents = git_bytes("cat-file", "--batch", stdin=asked.encode(), seconds=READING_SECONDS)
    place = 0
    for mode, _, name in blobs:
        end = contents.index(b"\n", place)
        size = int(contents[place:end].split(b" ")[2])
        yield _Entry(mode, name, contents[end + 1 : end + 1 + size])
        place = end + 1 + size + 1


def _write(entry: _Entry, folder: Path) -> None:
    name = PurePosixPath(entry.name)
    if name.is_absolute() or ".." in name.parts:
        raise UsageError(f"{entry.name}: the revision has a file outside of its repository")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if entry.mode == LINK:
        path.symlink_to(os.fsdecode(entry.content))
        return
    path.write_bytes(entry.content)
    if entry.mode == EXECUTABLE:
        path.chmod(0o755)
