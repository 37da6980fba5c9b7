"""The user's files in a workload: which they are, and whether they are unchanged.

A specification names files, and their content may change: trials before and after such a change
measure different things, and must not count as repetitions.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import replace
from pathlib import Path, PurePath

from dpbench.architecture.naming import parse_name
from dpbench.errors import UsageError
from dpbench.specs import WorkloadSpec


def own_file(text: str) -> Path | None:
    """The user's file that a name leads to, or that of its module; None for what dpbench or
    torchvision brings, and for a module without a file."""
    name = parse_name(text)
    if name.source == "file":
        return Path(name.origin).resolve()
    if name.source != "module":
        return None
    try:
        spec = importlib.util.find_spec(name.origin)
    except (ImportError, ValueError):  # loading it reports the error
        return None
    file = Path("" if spec is None else spec.origin or "")
    return file if file.is_file() else None


def files_sha256(workload: WorkloadSpec) -> str | None:
    """The SHA-256 of the output of `sha256sum` for the user's files; None if the workload has none.

    Files that they import do not count. Raises UsageError for a file that cannot be read.
    """
    if workload.script:
        files = [Path(workload.script[0])] if workload.script[0] != "-m" else []
    else:
        files = [*filter(None, map(own_file, (workload.architecture, workload.dataset)))]
    lines = ""
    for path in dict.fromkeys(files):
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
    names = map(parse_name, (workload.architecture, workload.dataset))
    user_code = [PurePath(name.origin).name for name in names if name.is_user_code]
    return " or ".join(dict.fromkeys(user_code))
