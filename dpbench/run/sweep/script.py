"""The part of a sweep's plan that is particular to a training script."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpbench.data.user_code import with_files
from dpbench.errors import UsageError
from dpbench.options.script import WARMUP
from dpbench.options.sweep import SweepOptions
from dpbench.specs import WorkloadSpec
from dpbench.specs.traits import OWN_BACKEND, OWN_BATCH_SIZE


def with_defaults(options: SweepOptions) -> SweepOptions:
    """The options of a script's sweep, with what stands for the script's own choice where none is
    given."""
    usual = {
        "backends": (OWN_BACKEND,),
        "batch_sizes": (OWN_BATCH_SIZE,),
        "warmup": (WARMUP,),
        "threads": (int(os.environ.get("OMP_NUM_THREADS", "1")),),  # as under torchrun
    }
    given = options.model_fields_set
    return options.model_copy(update={n: one for n, one in usual.items() if n not in given})


def workload_of(script: tuple[str, ...], settings: Mapping[str, Any]) -> WorkloadSpec:
    """The workload of a script and its arguments, with these settings, which may stand in its
    arguments. Nothing of it runs here. Raises UsageError if there is no such script."""
    named = script[1] if script[0] == "-m" else Path(script[0]).name
    if script[0] == "-m":
        _require_module(script[1])
    elif not Path(script[0]).is_file():
        raise UsageError(f"no file {script[0]} here ({Path.cwd()})")
    own = {"architecture": named, "dataset": "", "script": script}
    return with_files(WorkloadSpec(**{**settings, **own}))


def _require_module(name: str) -> None:
    sys.path.insert(0, str(Path.cwd()))  # as python -m does
    try:
        if find_spec(name) is None:
            raise UsageError(f"-m {name}: no such module")
    except ModuleNotFoundError as error:
        raise UsageError(f"-m {name}: {error}") from None
    finally:
        sys.path.remove(str(Path.cwd()))
