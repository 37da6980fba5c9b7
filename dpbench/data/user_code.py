"""The user's code in a workload: which files it is, and whether they are unchanged.

A specification names files, and their content may change: trials before and after such a change
measure different things, and must not count as repetitions.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path, PurePath

from dpbench.architecture.loading import own_file
from dpbench.architecture.naming import parse_name
from dpbench.errors import UsageError
from dpbench.specs import WorkloadSpec


def files_sha256(workload: WorkloadSpec) -> str | None:
    """The SHA-256 of the output of `sha256sum` for the user's files; None if the workload has none.

    Files that they import do not count. Raises UsageError for a file that cannot be read.
    """
    if workload.script:
        named = workload.script[:1] if workload.script[0] != "-m" else ()
        files = dict.fromkeys(map(Path, named))
    else:
        files = dict.fromkeys(filter(None, map(own_file, _names(workload))))
    lines = ""
    for path in files:
        try:
            with path.open("rb") as file:
                lines += f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n"
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}; expected a file") from None
    return hashlib.sha256(lines.encode()).hexdigest() if files else None


def with_files(workload: WorkloadSpec) -> WorkloadSpec:
    """The workload with the hash of its files as they are now; raises the same errors as
    `files_sha256`."""
    return replace(workload, files_sha256=files_sha256(workload))


def named_files(workload: WorkloadSpec) -> str:
    """The user's files in words: "model.py or data.py"."""
    if workload.script:
        return workload.architecture
    names = map(parse_name, _names(workload))
    theirs = [PurePath(one.origin).name for one in names if one.is_user_code]
    return " or ".join(dict.fromkeys(theirs))


def _names(workload: WorkloadSpec) -> list[str]:
    return [workload.architecture, workload.dataset]
