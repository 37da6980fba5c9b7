"""The user's code is tried in a rank of its own: threads that it starts end with it, what it prints
stays there, and a crash ends nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event
from typing import TypeVar

from dpbench import architecture
from dpbench.data.registry import is_function
from dpbench.errors import UsageError
from dpbench.launch.failures import RanksFailed
from dpbench.launch.rank_process import is_rank
from dpbench.launch.ranks import run_one_rank
from dpbench.measure.try_out import TryOutResult, try_out

T = TypeVar("T")

LIMIT_SECONDS = 600.0
"""Longest time for building a model and a step on two samples."""
_runs_user_code = Event()
"""Set in the rank of `run_user_code`."""


def preflight(arch: str, *, dataset: str | None, seed: int) -> TryOutResult:
    """Do what `measure.try_out.try_out` does, in a rank if any of it is the user's code.

    Raises UsageError, also if the user's code ends the rank or hangs, or calls dpbench.
    """
    if _runs_user_code.is_set():
        raise UsageError(
            f"architecture {arch!r}: a script that is imported for its architecture puts its call "
            'of dpbench under `if __name__ == "__main__":`'
        )
    call = partial(try_out, arch, dataset=dataset, seed=seed)
    is_users = architecture.is_user_code(arch) or is_function(dataset or "")
    return run_user_code(f"architecture {arch!r}", call) if is_users and not is_rank() else call()


def run_user_code(subject: str, call: Callable[[], T]) -> T:
    """The result of `call`, which runs the user's code, from a rank of its own.

    Raises the UsageError of `call`, or one that begins with `subject` if the code ends the rank.
    """
    try:
        return run_one_rank(partial(_run_marked, call), LIMIT_SECONDS)
    except RanksFailed as failed:
        if failed.cause and failed.cause.own_error:
            raise UsageError(failed.cause.message) from None
        raise UsageError(f"{subject}: trying it on the CPU failed: {failed}") from None


def _run_marked(call: Callable[[], T], _: int) -> T:
    _runs_user_code.set()
    return call()
