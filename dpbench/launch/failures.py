"""How ranks fail, and which failure is the first cause.

When one rank dies the others lose their connection and fail too, often before anyone looks. The
first cause is the earliest failure of the first of the kinds that `FailureKind` lists.
"""

from __future__ import annotations

import enum
import math
import re
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpbench import units
from dpbench.architecture.user_errors import raised_at
from dpbench.errors import DpbenchError
from dpbench.launch.signals import ENDING, end_in_words
from dpbench.measure.device import peak_memory_words
from dpbench.parallel.groups import PeerFailed
from dpbench.records.trial import Status

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_DPBENCH = Path(__file__).parents[1]
_WAITING_FOLDERS = (Path(torch.__file__).parent, _DPBENCH / "parallel", _DPBENCH / "measure")
"""Folders of waiting code: a rank whose innermost frame is in one waits for a collective, or
computes in torch."""

KILLING = (signal.SIGKILL, *ENDING)
"""Signals sent from outside; all others come from the program itself."""
SERVER_GONE = 255
"""Exit code that multiprocessing gives a rank whose fork server has ended: nobody knows its own."""
MAX_TEXT = 2000
LOST_PEER_WORDS = (
    PeerFailed.__name__.lower(),
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "broken pipe",
    "socket closed",
    "connection timed out",
    "no route to host",
    "network is unreachable",
    "recvvalue failed",
    "remote process exited",
)
"""Words of gloo, NCCL and the system about a peer that is gone, and the name of dpbench's error."""
OUT_OF_MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory")


class FailureKind(enum.IntEnum):
    """The ways in which a rank fails, the likeliest first cause first."""

    RAISED = 0
    HUNG = 1
    """The rank was busy at the time limit, and not in a collective."""
    ENDED = 2
    """The process ended without a result or an exception."""
    WAITED = 3
    """The rank waited for others in a collective at the time limit."""
    LOST_PEER = 4
    """The rank raised because another had ended, or was ended by SIGABRT: NCCL's watchdog aborts a
    process that has lost its peer on another node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFailure:
    """How one rank failed. A rank that was ended because another had failed has none."""

    rank: int
    kind: FailureKind
    predicate: str
    """The rest of a sentence that begins with the rank: "raised ValueError: no samples"."""
    status: Status = Status.FAILED
    """Status of a trial of which this is the first cause."""
    killed: bool = False
    """True if something outside ended the process, such as kill -9: another try may succeed."""
    at_seconds: float = 0.0
    """Seconds from the start of its node's ranks until it raised, as clocks of nodes differ."""
    own_error: str = ""
    """The type of the exception if it is one of dpbench's, whose message needs no addition."""
    message: str = ""
    """First line of the exception's message, up to MAX_TEXT characters."""
    details: str = ""
    """The traceback; of a worker of `dpbench launch`, the last lines of its stderr."""


class RanksFailed(DpbenchError):
    """Some ranks did not return; the message is the reason, which names the first cause.

    Attributes:
        failures: of the ranks that were not ended because of another.
        cause: the failure that the others follow from, by `FailureKind`; None without any.
        outcome: the fields of a `Record` of these ranks that say how they ended.
    """

    def __init__(
        self,
        failures: Sequence[RankFailure],
        time_limit_seconds: float = math.inf,
        *,
        name: Callable[[int], str] = "rank {}".format,
    ) -> None:
        """`name` gives the names of ranks in the message."""
        self.failures = tuple(failures)
        cause = min(failures, key=lambda failure: (failure.kind, failure.at_seconds), default=None)
        named, late = [cause] if cause else [], ""
        if cause and cause.status is Status.TIMED_OUT:  # all ranks that the others waited for
            named = [failure for failure in failures if failure.kind is cause.kind]
            late = f"no result after {units.seconds(time_limit_seconds)}: "
        where = "; ".join(f"{name(failure.rank)} {failure.predicate}" for failure in named)
        super().__init__(f"{late}{where}" if named else "the ranks left no trace")
        self.cause = cause
        self.outcome: dict[str, Any] = {
            "status": cause.status if cause else Status.FAILED,
            "reason": str(self),
            "killed": bool(cause and cause.killed),
        }


def failure_of_exception(rank: int, error: BaseException, started: float) -> RankFailure:
    """The failure of a rank that raises now; `started` is when the ranks of its node started, on
    the monotonic clock."""
    text = str(error).encode(errors="backslashreplace").decode()
    message = next(iter(text.splitlines()), "")[:MAX_TEXT]
    kind, is_own = type(error).__name__, isinstance(error, DpbenchError)
    named = f"{kind}: {message}" if message else kind
    described = (message if is_own else named) + raised_at(error)
    out_of_memory = isinstance(error, MemoryError) or any(
        phrase in text.lower() for phrase in OUT_OF_MEMORY_WORDS
    )
    if out_of_memory:
        predicate = (
            f"ran out of memory: {described}; its peak was {peak_memory_words()}; take a smaller "
            "batch or message, or end what else holds memory there"
        )
    else:
        predicate = f"failed: {described}" if is_own else f"raised {described}"
    return RankFailure(
        rank=rank,
        kind=FailureKind.LOST_PEER if is_of_lost_peer(f"{kind} {text}") else FailureKind.RAISED,
        predicate=predicate,
        status=Status.OUT_OF_MEMORY if out_of_memory else Status.FAILED,
        at_seconds=time.monotonic() - started,
        own_error=kind if is_own else "",
        message=message,
        details="".join(traceback.format_exception(error)),
    )


def is_of_lost_peer(text: str) -> bool:
    """Whether an error, as its type and message, is about a rank that had ended before."""
    return any(phrase in text.lower() for phrase in LOST_PEER_WORDS)


def failure_of_end(rank: int, exit_code: int) -> RankFailure:
    """The failure of a rank whose process ended without a result; a negative exit code is that of a
    signal."""
    predicate = end_in_words(exit_code) if exit_code else "ended without a result"
    if exit_code == SERVER_GONE:
        predicate += ", or the server that ranks are forked from was killed"
    return RankFailure(
        rank=rank,
        kind=FailureKind.LOST_PEER if exit_code == -signal.SIGABRT else FailureKind.ENDED,
        predicate=predicate,
        killed=-exit_code in KILLING or exit_code == SERVER_GONE,
    )


def failure_of_hang(rank: int, stack: str) -> RankFailure:
    """The failure of a rank that the time limit ended, from the stack that it wrote then."""
    frame = _FRAME.search(stack)
    predicate, kind = "did not respond", FailureKind.HUNG
    if frame is not None:
        file = Path(frame["file"])
        predicate = f"was in {frame['function']} ({file.name}:{frame['line']})"
        if any(file.is_relative_to(folder) for folder in _WAITING_FOLDERS):
            kind = FailureKind.WAITED
    return RankFailure(rank=rank, kind=kind, predicate=predicate, status=Status.TIMED_OUT)
