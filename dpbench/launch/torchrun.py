"""torch's own torchrun, made to start our worker file around each worker.

torchrun reads the arguments, refuses what it cannot do, and does the work. The store of one node is
held here: torch would use its c10d rendezvous, which listens at all addresses and unpickles values
from the store, so that anyone who reached the port could run code.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from textwrap import fill, indent
from typing import NoReturn

import torch
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.launcher.api import elastic_launch

from dpbench.errors import DpbenchError, Interrupted, UsageError
from dpbench.launch.failures import FailureKind, RanksFailed, failure_of_end, is_of_lost_peer
from dpbench.launch.signals import ended_by_second_signal
from dpbench.parent_death import tied_to_this_process
from dpbench.rendezvous.placement import (
    GLOO_INTERFACE,
    LOOPBACK,
    MAX_PORT,
    STORE_FILE,
    USUAL_PORT,
    endpoint_text,
    interface_towards,
    parse_endpoint,
)
from dpbench.rendezvous.store import reach_store, serve_store
from dpbench.temporary import temporary_folder, temporary_variables

RENDEZVOUS_BACKENDS = ("static", "c10d")
"""Backends of a rendezvous; torchrun's others need a server of their own."""
THREADS = "OMP_NUM_THREADS"
LINE_PREFIX = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
AGENT_LOGGERS = (
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
)
"""They log each failed worker with a traceback, which the summary repeats."""
LAST_LINES = 20
ENDED_BY_LAUNCHER = (-signal.SIGTERM, -signal.SIGKILL)


def refuse(message: object) -> NoReturn:
    """Raise UsageError for arguments that cannot be."""
    reason = str(message).rstrip(".?") or type(message).__name__
    raise UsageError(f"{reason}. See dpbench launch --help.")


def read_arguments(arguments: Sequence[str], *, about: str = "") -> Namespace:
    """Parse the arguments with torchrun's parser; `nproc_per_node` is a number in the result.

    `about` is the help, which goes on with the names of torchrun's options.

    Raises UsageError for values that would fail late or without naming the option, or if there is
    nothing to start; SystemExit after printing the help.
    """
    parser = torchrun.get_args_parser()
    found = re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", parser.format_help(), re.MULTILINE)
    listed = fill(" ".join(dict.fromkeys(found)), 78, break_on_hyphens=False)
    text = f"{about}\n\nOptions, which torchrun --help describes:\n{indent(listed, '  ')}\n"

    def refused(message: str) -> NoReturn:
        # argparse names its own variables
        refuse("name a script: dpbench launch FILE" if "training_script" in message else message)

    # A type checker allows no other way to replace methods.
    setattr(parser, "error", refused)  # noqa: B010
    setattr(parser, "format_help", lambda: text)  # noqa: B010
    parser.allow_abbrev = False  # it would complete options of the script, too
    chosen = parser.parse_args(arguments)
    if chosen.rdzv_backend not in RENDEZVOUS_BACKENDS:
        refuse(
            f"got --rdzv-backend={chosen.rdzv_backend}, expected {' or '.join(RENDEZVOUS_BACKENDS)}"
        )
    nodes, local = f"--nnodes={chosen.nnodes}", f"--nproc-per-node={chosen.nproc_per_node}"
    try:
        _, most_nodes = torchrun.parse_min_max_nnodes(chosen.nnodes)
        processes = torchrun.determine_local_world_size(chosen.nproc_per_node)
    except (ValueError, RuntimeError) as error:
        refuse(f"got {nodes} and {local}: {error}")
    if processes < 1:
        refuse(f"got {local}, expected at least 1")
    if chosen.no_python and chosen.module:
        refuse("got --no-python and -m, expected one of the two")
    if chosen.rdzv_backend == "static" and not 0 <= chosen.node_rank < max(most_nodes, 1):
        refuse(f"got --node-rank={chosen.node_rank}, expected 0 to {most_nodes - 1} with {nodes}")
    endpoint(chosen)  # refuses what is none
    chosen.nproc_per_node = str(processes)
    if (chosen.tee, chosen.redirects) == ("0", "0"):
        chosen.tee = "2"  # keeps stderr too, whose last lines are shown again
    if hasattr(chosen, "signals_to_handle"):  # torch 2.9
        names = map(str.strip, chosen.signals_to_handle.split(","))
        ignored = {s.name for s in signal.Signals if signal.getsignal(s) is signal.SIG_IGN}
        chosen.signals_to_handle = ",".join(name for name in names if name not in ignored)
    typed = " ".join(chosen.training_script_args).replace("=", " ")
    wants_nccl = re.search(r"--(dist[-_])?backend nccl", typed)
    if wants_nccl and processes > (gpus := torch.cuda.device_count()):
        raise UsageError(
            f"got {local} and a script with nccl, expected at most {gpus}: NCCL needs a GPU of its "
            f"own for every process, and this host has {gpus}"
        )
    return chosen


def is_one_node(chosen: Namespace) -> bool:
    """Whether no other launcher takes part."""
    return bool(chosen.standalone) or torchrun.parse_min_max_nnodes(chosen.nnodes) == (1, 1)


def endpoint(chosen: Namespace) -> tuple[str, int]:
    """Host and port where the launchers and workers meet; a free port of one node is 0. Raises
    UsageError for what is no endpoint."""
    host, port = chosen.master_addr, chosen.master_port
    option = f"--master-port={port}"
    if chosen.standalone:
        return LOOPBACK, 0
    if chosen.rdzv_endpoint:
        option = f"--rdzv-endpoint={chosen.rdzv_endpoint}"
        host, port = parse_endpoint(chosen.rdzv_endpoint) or ("", 0)
    elif port is None:
        return host, 0 if is_one_node(chosen) else USUAL_PORT
    if not 1 <= port <= MAX_PORT:
        refuse(f"got {option}, expected a port from 1 to {MAX_PORT}")
    return host, port


def gloo_interface(chosen: Namespace) -> str | None:
    """The network interface by which gloo reaches the ranks of other nodes: the one that has
    --local-addr, or else leads to where they meet.

    By default gloo takes the interface that the host's own name resolves to, often the loopback.
    None if there is one node, GLOO_SOCKET_IFNAME is set, or none is found.
    """
    if is_one_node(chosen) or GLOO_INTERFACE in os.environ:
        return None
    return interface_towards(chosen.local_addr or endpoint(chosen)[0])


def run_workers(chosen: Namespace, threads: int) -> None:
    """Run torchrun to its end, with `threads` for each worker unless OMP_NUM_THREADS is set.

    Raises RanksFailed; Interrupted; UsageError for what torchrun itself refuses, or a port that
    is not free; DpbenchError if the launchers of several nodes did not come together.
    """
    with (
        temporary_folder() as folder,
        ended_by_second_signal(),  # and the workers with this process
        temporary_variables(worker_variables(chosen, threads, folder)),
    ):
        logs = chosen.log_dir or str(folder)
        if not chosen.max_restarts:  # otherwise torch reports the attempts
            for name in AGENT_LOGGERS:
                logging.getLogger(name).setLevel(logging.CRITICAL)
        host, port = endpoint(chosen)
        options = {"log_dir": logs, "master_port": port}
        # Until the end: torch's agent gets this store when it asks for one at this port.
        store = serve_store(port) if is_one_node(chosen) else None
        if store is not None:
            options |= {"nnodes": "1", "node_rank": 0, "rdzv_backend": "static"}
            options["rdzv_endpoint"] = endpoint_text(LOOPBACK, store.port)
        try:
            config, program, arguments = torchrun.config_from_args(
                Namespace(**vars(chosen) | options)
            )
            if not chosen.run_path:  # torch itself ends a function's process with its parent
                program, *arguments = tied_to_this_process([str(program), *arguments])
            if store is None and chosen.rdzv_backend == "static" and chosen.node_rank > 0:
                # torch's own client would print a hundred lines for a node 0 that does not come.
                wait = timedelta(seconds=int(config.rdzv_configs["timeout"]))
                reach_store(host, port, "node 0", wait)
            elastic_launch(config, program)(*arguments)
        except ChildFailedError as error:
            raise workers_failed(error.failures, Path(logs)) from None
        except SignalException as error:
            raise Interrupted(error.sigval) from None
        except (ValueError, AssertionError) as error:
            refuse(f"torchrun refuses: {error}")
        except RendezvousError as error:
            reason = type(error).__name__ + (f": {error}" if str(error) else "")
            raise DpbenchError(
                f"the launchers of {chosen.nnodes} nodes did not come together at "
                f"{endpoint_text(host, port)} ({reason}); compare their --nnodes and --rdzv-id"
            ) from error
        except RuntimeError as error:
            reason = str(error) or type(error).__name__
            raise DpbenchError(f"torchrun could not start the workers: {reason}") from error


def workers_failed(ends: Mapping[int, ProcessFailure], logs: Path) -> RanksFailed:
    """The error with the workers' failures, from torch's by rank; `logs` is torchrun's log folder.

    A worker that the launcher has ended has not failed, unless no other has ended before.
    """
    earliest = min(ends.values(), key=lambda end: end.timestamp)
    failures = []
    for rank, end in ends.items():
        if end is earliest or end.exitcode not in ENDED_BY_LAUNCHER:
            # torchrun writes it to LOGS/RUN/attempt_N/LOCAL_RANK.
            kept = logs.glob(f"*/attempt_*/{end.local_rank}/stderr.log")
            latest = max(kept, key=lambda path: path.stat().st_mtime_ns, default=None)
            text = "" if latest is None else latest.read_text(errors="replace")
            details = "\n".join(text.splitlines()[-LAST_LINES:])
            failure = failure_of_end(rank, end.exitcode)
            kind = FailureKind.LOST_PEER if is_of_lost_peer(details) else failure.kind
            failures.append(replace(failure, kind=kind, at_seconds=end.timestamp, details=details))
    return RanksFailed(failures)


def worker_variables(chosen: Namespace, threads: int, folder: Path) -> dict[str, str]:
    """Environment variables that workers inherit; those that the user has set stay.

    Workers of one node that use dpbench meet in a file, which the host's other users cannot reach.
    """
    role = "" if chosen.role == "default" else "${role_name} "
    usual = {THREADS: str(threads), LINE_PREFIX: f"[{role}rank ${{rank}}] "}
    is_alone = is_one_node(chosen)
    if interface := "lo" if is_alone else gloo_interface(chosen):
        usual[GLOO_INTERFACE] = interface
    meeting = {STORE_FILE: str(folder / "store")} if is_alone else {}
    return meeting | {name: os.environ.get(name, value) for name, value in usual.items()}
