"""The user's files in a workload: which they are, and whether they are unchanged.

A specification names files, and their content may change: trials before and after such a change
measure different things, and must not count as repetitions.
"""

from __future__ import annotations

import hashlib
import importlib.util
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath

from dpbench.architecture.naming import parse_name
from dpbench.errors import UsageError
from dpbench.specs import WorkloadSpec


def user_files(workload: WorkloadSpec) -> tuple[Path, ...]:
    """The user's files: those that the workload names, and those of the modules that it names;
    dpbench's and torchvision's are none, nor has every module one."""
    if workload.script:
        return () if workload.script[0] == "-m" else (Path(workload.script[0]),)
    files = list[Path]()
    for name in map(parse_name, (workload.architecture, workload.dataset)):
        if name.source == "file":
            files.append(Path(name.origin).resolve())
        elif name.source == "module":
            with suppress(ImportError, ValueError):  # loading it reports the error
                spec = importlib.util.find_spec(name.origin)
                if spec is not None and Path(spec.origin or "").is_file():
                    files.append(Path(spec.origin or ""))
    return tuple(dict.fromkeys(files))


def files_sha256(workload: WorkloadSpec) -> str | None:
    """A hash of the content of the user's files; None if the workload has none.

    Files that they import do not count. Raises UsageError for a file that cannot be read.
    """
    digest, files = hashlib.sha256(), user_files(workload)
    for path in files:
        try:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}; expected a file") from None
    return digest.hexdigest() if files else None


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
