"""The commands that measure the same again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from dpbench.analysis.subject import Subject
from dpbench.report.page.environment import most_used
from dpbench.store import MEASURING, StoredCollectives, StoredSweep

AGAIN = "-again"
"""Suffix of a name, so that the old folder stays unchanged."""
HARMLESS = frozenset(
    {
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "KMP_AFFINITY", "CUDA_VISIBLE_DEVICES"),
        *("TORCH_DISTRIBUTED_DEBUG", "GLOO_SOCKET_IFNAME"),
        *("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_"),
        *("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_"),
        *("NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_LAUNCH_MODE"),
        *("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
        *("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"),
        *("NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_CROSS_NIC"),
        *("NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_NTHREADS"),
        *("NCCL_NSOCKS_PERTHREAD", "NCCL_NET_GDR_LEVEL", "NCCL_IB_DISABLE", "NCCL_IB_HCA"),
        *("NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_TIMEOUT"),
        *("NCCL_IB_QPS_PER_CONNECTION", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        *("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_HIGH_PRIORITY"),
        *("TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_NCCL_USE_COMM_NONBLOCKING"),
    }
)
"""Variables that a reader may set as a folder says. Others load a library or write a file, as
LD_PRELOAD, NCCL_NET_PLUGIN and NCCL_DEBUG_FILE do, or may do so in a later version."""
NAMES_SHOWN = 5
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]{0,63}")


def command_of(subject: Subject) -> str:
    """Commands to type, one per line; empty for published numbers.

    Variables of the environment that bear on results stand before the command, unless they could
    run something.
    """
    stored = (subject.sweep, subject.collectives)
    return "\n".join(_line(one) for one in stored if one is not None)


def _line(stored: StoredSweep | StoredCollectives) -> str:
    used = [record.environment_id for record in stored.records]
    environment = most_used(stored.environments, used)
    variables = () if environment is None else environment.variables
    if next(iter(stored.command), None) not in MEASURING:
        return "# the command is not known"
    words = ["dpbench", *_again(stored.command)]
    settings = [f"{name}={quoted(value)}" for name, value in variables if name in HARMLESS]
    return " ".join([*settings, *map(quoted, words), *_remarks(stored, variables)])


def _remarks(
    stored: StoredSweep | StoredCollectives, variables: Sequence[tuple[str, ...]]
) -> Iterator[str]:
    """Comment lines, which a shell ignores."""
    if isinstance(stored, StoredSweep) and stored.spec.nodes:
        yield f"# on each of {len(stored.spec.nodes)} nodes, with its own --node-rank"
    if left_out := [name for name, _ in variables if name not in HARMLESS]:
        named = [name for name in left_out if _NAME.fullmatch(name)][:NAMES_SHOWN]
        more = len(left_out) - len(named)
        yield f"# without {', '.join([*named, *([f'{more} more'] if more else [])])}"


def _again(words: Sequence[str]) -> Iterator[str]:
    """The command with a new folder, from the start."""
    previous = ""
    for word in words:
        if previous == "--name" or word.startswith("--name="):
            yield f"{word}{AGAIN}"
        elif word != "--resume":
            yield word
        previous = word


def quoted(word: str) -> str:
    """For a shell; what cannot be seen with bash's $'…' and its escapes."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (
        c
        if c.isprintable() and c not in "\\'"
        else "".join(f"\\x{byte:02x}" for byte in c.encode("utf-8", "surrogatepass"))
        for c in word
    )
    return f"$'{''.join(escaped)}'"
