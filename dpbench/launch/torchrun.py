"""torch's own torchrun, made to start our worker file around each worker.

torchrun's parser reads the arguments, and its `run` does the work; nothing is reimplemented.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NoReturn

import torch
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from dpbench.errors import Interrupted, LaunchError, UsageError
from dpbench.launch import launch_store
from dpbench.launch.placement import interface_towards
from dpbench.launch.rank import speaks_of_lost_peer
from dpbench.launch.signals import end_in_words, second_ends_at_once
from dpbench.launch.worker import tied_to_this_process
from dpbench.rendezvous.launch_variables import GLOO_INTERFACE, LARGEST_PORT, USUAL_PORT
from dpbench.rendezvous.store import file_variables
from dpbench.temporary import clean_up, temporary_folder, temporary_variables

BACKENDS = ("static", "c10d")
"""Backends of a rendezvous; torchrun's others need a server of their own."""
THREADS = "OMP_NUM_THREADS"
PREFIX = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
HELP = "See dpbench launch --help."
AGENT_LOGGERS = (
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
)
"""They log each failed worker with a traceback, which the summary repeats."""
LAST_LINES = 20
ENDED_BY_LAUNCHER = (-signal.SIGTERM, -signal.SIGKILL)


class WorkersFailed(Exception):
    """A worker of this host did not end with status 0; the text says which was the first, and
    how."""

    def __init__(self, text: str, last_lines: Sequence[str]) -> None:
        super().__init__(text)
        self.last_lines = tuple(last_lines)
        """Last lines of its stderr; empty if that was not kept."""


def read(
    arguments: Sequence[str], help_of: Callable[[Sequence[str]], str] | None = None
) -> Namespace:
    """Parse the arguments with torchrun's parser; `nproc_per_node` is a number in the result.

    `help_of` makes the help from the names of all options; without it the parser does.

    Raises UsageError for arguments that torchrun would refuse, or if there is nothing to start;
    SystemExit after printing the help.
    """
    parser = torchrun.get_args_parser()
    if help_of is not None:
        # Private, but argparse has no other list of its options.
        names = [action.option_strings for action in parser._actions if action.option_strings]
        shown = help_of([name for few in names for name in few if "_" not in name])
        setattr(parser, "format_help", lambda: shown)  # noqa: B010 - as below

    def refuse(message: str) -> NoReturn:
        if "training_script" in message:  # argparse names its own variables
            message = "name a script: dpbench launch FILE"
        raise UsageError(f"{message}. {HELP}")

    setattr(parser, "error", refuse)  # noqa: B010 - a type checker allows no other way
    parser.allow_abbrev = False  # it would complete options of the script, too
    chosen = parser.parse_args(arguments)
    if chosen.rdzv_backend not in BACKENDS:
        raise UsageError(
            f"got --rdzv-backend={chosen.rdzv_backend}, expected {' or '.join(BACKENDS)}. {HELP}"
        )
    try:
        _, most_nodes = torchrun.parse_min_max_nnodes(chosen.nnodes)
    except (ValueError, RuntimeError):
        raise UsageError(f"got --nnodes={chosen.nnodes}, expected N or MIN:MAX. {HELP}") from None
    try:
        processes = torchrun.determine_local_world_size(chosen.nproc_per_node)
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"got --nproc-per-node: {_sentence(error)}") from None
    if processes < 1:
        raise UsageError(f"got --nproc-per-node={processes}, expected at least 1. {HELP}")
    if chosen.rdzv_backend == "static" and not 0 <= chosen.node_rank < max(most_nodes, 1):
        expected = f"expected 0 to {most_nodes - 1} with --nnodes={chosen.nnodes}"
        raise UsageError(f"got --node-rank={chosen.node_rank}, {expected}. {HELP}")
    chosen.nproc_per_node = str(processes)
    if chosen.rdzv_backend == "static" and not chosen.standalone:
        _check_endpoint(chosen)
    pairs = [pair.partition("=") for pair in chosen.rdzv_conf.split(",") if pair.strip()]
    unknown = {key.strip() for key, _, _ in pairs} - {"timeout"}
    if any(not value for _, _, value in pairs) or (chosen.rdzv_backend == "static" and unknown):
        keys = "timeout=SECONDS" if chosen.rdzv_backend == "static" else "KEY=VALUE,KEY=VALUE"
        raise UsageError(f"got --rdzv-conf={chosen.rdzv_conf}, expected {keys}. {HELP}")
    words = " ".join(chosen.training_script_args).replace("=", " ")
    wants_nccl = re.search(r"--(dist[-_])?backend nccl\b", words)
    if wants_nccl and processes > (gpus := torch.cuda.device_count()):
        raise UsageError(
            f"got --nproc-per-node={processes} and a script with nccl, expected at most {gpus}: "
            f"NCCL needs a GPU of its own for every process, and this host has {gpus}"
        )
    _check_command(chosen)
    return chosen


def precedence_note(chosen: Namespace) -> str | None:
    """A sentence on which of two options for the meeting place counts; None if one was typed."""
    usual = torchrun.get_args_parser().get_default
    names = ("master_addr", "master_port")
    both = chosen.rdzv_endpoint and any(getattr(chosen, name) != usual(name) for name in names)
    if not both or chosen.standalone:
        return None
    return f"--rdzv-endpoint={chosen.rdzv_endpoint} goes before --master-addr and --master-port"


def meeting_place(chosen: Namespace) -> str | None:
    """Place where the launchers of several nodes meet, in words; None if there is one node."""
    if torchrun.parse_min_max_nnodes(chosen.nnodes) == (1, 1) or chosen.standalone:
        return None
    port = chosen.master_port or USUAL_PORT
    return str(chosen.rdzv_endpoint or f"{chosen.master_addr}:{port}")


def gloo_interface(chosen: Namespace) -> str | None:
    """The network interface by which gloo reaches the ranks of other nodes: the one that has
    --local-addr, or else leads to the meeting place.

    By default gloo takes the interface that the host's own name resolves to, often the loopback.
    None if there is one node, GLOO_SOCKET_IFNAME is set, or none is found.
    """
    place = meeting_place(chosen)
    if place is None or GLOO_INTERFACE in os.environ:
        return None
    return interface_towards(chosen.local_addr or place.rpartition(":")[0].strip("[]"))


def run(chosen: Namespace, threads: int, interface: str | None = None) -> None:
    """Run torchrun to its end, with `threads` for each worker unless OMP_NUM_THREADS is set, and
    gloo on `interface` unless GLOO_SOCKET_IFNAME is set.

    Raises WorkersFailed; Interrupted; UsageError for what only torch's `run` refuses; LaunchError
    if the launchers of several nodes did not come together.
    """
    # A static rendezvous takes the ranks of nodes as they are typed; others number the nodes.
    numbered = chosen.rdzv_backend == "static" and not launch_store.is_one_node(chosen)
    with (
        temporary_folder() as folder,
        second_ends_at_once(_leave),
        temporary_variables(worker_variables(chosen, threads, interface, folder)),
        launch_store.held(chosen) as held,
        launch_store.claimed(held) if numbered else nullcontext(),
    ):
        prepared = prepared_for(held, folder)
        if not chosen.max_restarts:  # otherwise torch reports the attempts
            for name in AGENT_LOGGERS:
                logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            torchrun.run(prepared)  # type: ignore[no-untyped-call]
        except ChildFailedError as error:
            raise first_cause(error.failures, Path(prepared.log_dir)) from None
        except SignalException as error:
            raise Interrupted(error.sigval) from None
        except (ValueError, AssertionError) as error:
            raise UsageError(f"torchrun refuses: {_sentence(error)}") from None
        except RendezvousError as error:
            words = type(error).__name__ + (f": {error}" if str(error) else "")
            raise LaunchError(
                f"the launchers of {chosen.nnodes} nodes did not come together at "
                f"{meeting_place(chosen)} ({words}); compare their --nnodes and --rdzv-id"
            ) from error
        except RuntimeError as error:
            words = str(error) or type(error).__name__
            raise LaunchError(f"torchrun could not start the workers: {words}") from error


def _leave(number: int) -> None:
    """End at once on a second signal: workers get no more time to end."""
    os.write(2, b"dpbench: interrupted twice: workers are killed\n")
    clean_up()
    os._exit(128 + number)  # the workers die with this process


def first_cause(failures: Mapping[int, ProcessFailure], logs: Path) -> WorkersFailed:
    """The worker that failed first, from torch's failures by rank; `logs` is torchrun's log folder.

    That is the earliest one that had not just lost its peer, and that the launcher has not ended.
    """
    earliest = min(failures.values(), key=lambda failure: failure.timestamp)
    causes = []
    for rank, failure in failures.items():
        if failure is earliest or failure.exitcode not in ENDED_BY_LAUNCHER:
            lines = _last_lines(logs, failure.local_rank)
            lost_peer = speaks_of_lost_peer("\n".join(lines))
            causes.append((lost_peer, failure.timestamp, rank, failure.exitcode, lines))
    _, _, rank, exit_code, lines = min(causes)
    return WorkersFailed(f"rank {rank} {end_in_words(exit_code)}", lines)


def _last_lines(logs: Path, local_rank: int) -> tuple[str, ...]:
    """Last lines of the last attempt's stderr; torchrun writes it to
    LOGS/RUN/attempt_N/LOCAL_RANK."""
    kept = logs.glob(f"*/attempt_*/{local_rank}/stderr.log")
    latest = max(kept, key=lambda path: path.stat().st_mtime_ns, default=None)
    if latest is None:
        return ()
    return tuple(latest.read_text(errors="replace").splitlines()[-LAST_LINES:])


def _sentence(error: Exception) -> str:
    words = str(error).rstrip(".?") or type(error).__name__
    return f"{words}. {HELP}"


def _check_endpoint(chosen: Namespace) -> None:
    """Raise UsageError for a meeting place whose port cannot be used."""
    option, port = f"--master-port={chosen.master_port}", chosen.master_port
    if chosen.rdzv_endpoint:
        option = f"--rdzv-endpoint={chosen.rdzv_endpoint}"
        try:
            _, port = parse_rendezvous_endpoint(chosen.rdzv_endpoint, default_port=-1)
        except ValueError:
            port = -1
    if port is not None and not 1 <= port <= LARGEST_PORT:
        raise UsageError(f"got {option}, expected a port from 1 to {LARGEST_PORT}. {HELP}")


def _check_command(chosen: Namespace) -> None:
    """Raise UsageError if there is nothing to start: otherwise every worker would fail by
    itself."""
    script: str = chosen.training_script
    if chosen.no_python and chosen.module:
        raise UsageError(f"got --no-python and -m, expected one of the two. {HELP}")
    if chosen.no_python:
        if shutil.which(script) is None:
            raise UsageError(f"got {script!r}, expected a program: there is none that can be run")
    elif not chosen.module and not any(
        path.is_file() for path in (Path(script), Path(script, "__main__.py"))
    ):
        raise UsageError(f"got {script!r}, expected a Python script: there is no such file")


def prepared_for(chosen: Namespace, folder: Path) -> Namespace:
    """The options with our worker file before the command, and with stderr kept to be shown
    again."""
    prepared = Namespace(**vars(chosen))
    prepared.log_dir = chosen.log_dir or str(folder)
    if hasattr(chosen, "signals_to_handle"):  # torch 2.9
        names = map(str.strip, chosen.signals_to_handle.split(","))
        ignored = {one.name for one in signal.Signals if signal.getsignal(one) is signal.SIG_IGN}
        prepared.signals_to_handle = ",".join(name for name in names if name not in ignored)
    if (chosen.tee, chosen.redirects) == ("0", "0"):
        prepared.tee = "2"
    if chosen.run_path:
        return prepared  # torch itself ends a function's process with its parent
    command = [chosen.training_script, *chosen.training_script_args]
    if not chosen.no_python:
        python = os.environ.get("PYTHON_EXEC", sys.executable)
        command = [python, "-u", *(["-m"] if chosen.module else []), *command]
    prepared.no_python, prepared.module = True, False
    prepared.training_script, *prepared.training_script_args = tied_to_this_process(command)
    return prepared


def worker_variables(
    chosen: Namespace, threads: int, interface: str | None, folder: Path
) -> dict[str, str]:
    """Environment variables that workers inherit; those that the user has set stay.

    Workers of one node that use dpbench meet in a file, which the host's other users cannot reach.
    """
    role = "" if chosen.role == "default" else "${role_name} "
    usual = {THREADS: str(threads), PREFIX: f"[{role}rank ${{rank}}] "}
    if interface is not None:
        usual[GLOO_INTERFACE] = interface
    one_node = file_variables(folder / "store") if launch_store.is_one_node(chosen) else {}
    return one_node | {name: os.environ.get(name, value) for name, value in usual.items()}
