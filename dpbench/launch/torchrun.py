"""torch's own torchrun, made to start our worker file around each worker.

torchrun's parser reads the arguments, and its `run` does the work; nothing is reimplemented.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import torch
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from dpbench.errors import Interrupted, LaunchError, UsageError
from dpbench.launch import launch_store, signals, worker
from dpbench.launch.agent import silence_the_agent
from dpbench.launch.rank import OneHost
from dpbench.launch.where import interface_towards
from dpbench.launch.worker_ends import WorkersFailed, ends_of
from dpbench.messages import Say
from dpbench.rendezvous.launch_variables import GLOO_INTERFACE, LARGEST_PORT, USUAL_PORT
from dpbench.temporary import remove_temporary_folders, temporary_folder

THREADS = "OMP_NUM_THREADS"
PREFIX = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
HELP = "See dpbench launch --help."


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
    _refuse_in_one_line(parser)
    chosen = parser.parse_args(arguments)
    try:
        _, most_nodes = torchrun.parse_min_max_nnodes(chosen.nnodes)
        processes = torchrun.determine_local_world_size(chosen.nproc_per_node)
    except (ValueError, RuntimeError) as error:
        raise UsageError(_sentence(error)) from None
    if processes < 1:
        raise UsageError(f"got --nproc-per-node={processes}, expected at least 1. {HELP}")
    if chosen.rdzv_backend == "static" and not 0 <= chosen.node_rank < max(most_nodes, 1):
        expected = f"expected 0 to {most_nodes - 1} with --nnodes={chosen.nnodes}"
        raise UsageError(f"got --node-rank={chosen.node_rank}, {expected}. {HELP}")
    chosen.nproc_per_node = str(processes)
    _check_endpoint(chosen)
    _check_gpus(chosen)
    _check_command(chosen)
    return chosen


def precedence_note(chosen: Namespace) -> str | None:
    """A sentence on which of two options for the meeting place counts; None if they agree."""
    usual = torchrun.get_args_parser()
    names = {"master_addr": "--master-addr", "master_port": "--master-port"}
    typed = [
        f"{option}={getattr(chosen, name)}"
        for name, option in names.items()
        if getattr(chosen, name) != usual.get_default(name)
    ]
    if not (typed and chosen.rdzv_endpoint) or chosen.standalone:
        return None
    return f"--rdzv-endpoint={chosen.rdzv_endpoint} goes before {' and '.join(typed)}"


def run(
    chosen: Namespace,
    threads: int,
    interface: str | None = None,
    say: Say = lambda _: None,
) -> None:
    """Run torchrun to its end, with `threads` for each worker unless OMP_NUM_THREADS is set, and
    gloo on `interface` unless GLOO_SOCKET_IFNAME is set.

    Raises WorkersFailed; Interrupted; UsageError for what only torch's `run` refuses; LaunchError
    if the launchers of several nodes did not come together.
    """
    with (
        temporary_folder() as folder,
        signals.second_ends_at_once(_leave),
        _environment(chosen, threads, interface, folder),
        launch_store.held(chosen, say) as held,
        _own_number(chosen, held),
    ):
        prepared = _prepared(held, folder)
        if not chosen.max_restarts:  # otherwise torch reports the attempts
            silence_the_agent()
        try:
            torchrun.run(prepared)  # type: ignore[no-untyped-call]
        except ChildFailedError as error:
            raise WorkersFailed(ends_of(error.failures, Path(prepared.log_dir))) from None
        except SignalException as error:
            raise Interrupted(error.sigval) from None
        except (ValueError, AssertionError) as error:
            raise UsageError(f"torchrun refuses: {_sentence(error)}") from None
        except RendezvousError as error:
            raise LaunchError(_not_together(chosen, error)) from error
        except RuntimeError as error:
            words = str(error) or type(error).__name__
            raise LaunchError(f"torchrun could not start the workers: {words}") from error


def _leave(number: int) -> None:
    """End at once on a second signal: workers get no more time to end."""
    os.write(2, b"dpbench: interrupted twice: workers are killed\n")
    remove_temporary_folders()
    os._exit(128 + number)  # the workers die with this process


def _own_number(chosen: Namespace, held: Namespace) -> AbstractContextManager[None]:
    """Claim this node's number, for a static rendezvous of several nodes; other backends number the
    nodes."""
    if launch_store.is_one_node(chosen) or chosen.rdzv_backend != "static":
        return nullcontext()
    return launch_store.claimed(held)


def _not_together(chosen: Namespace, error: Exception) -> str:
    return (
        f"the launchers of {chosen.nnodes} nodes did not come together at "
        f"{meeting_place(chosen)} ({type(error).__name__}{f': {error}' if str(error) else ''}); "
        "each needs the same --nnodes, --rdzv-endpoint and --rdzv-id, and must reach it; "
        "--rdzv-conf join_timeout=SECONDS gives them more time than 600 s"
    )


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


def dies_with_launcher() -> bool:
    """Whether workers end with a launcher that is killed."""
    return sys.platform == "linux"


def _refuse_in_one_line(parser: ArgumentParser) -> None:
    def refuse(message: str) -> NoReturn:
        raise UsageError(f"{message}. {HELP}")

    setattr(parser, "error", refuse)  # noqa: B010 - a type checker allows no other way


def _sentence(error: Exception) -> str:
    words = str(error).rstrip(".?") or type(error).__name__
    return f"{words}. {HELP}"


def _check_endpoint(chosen: Namespace) -> None:
    """Raise UsageError for a meeting place without a port that several nodes can call: node 0 would
    listen where nobody comes. A launch of one node may leave the choice to the system with 0."""
    if chosen.rdzv_backend != "static" or chosen.standalone:
        return
    option, port = f"--master-port={chosen.master_port}", chosen.master_port
    least = 0 if launch_store.is_one_node(chosen) else 1
    if chosen.rdzv_endpoint:
        option = f"--rdzv-endpoint={chosen.rdzv_endpoint}"
        try:
            _, port = parse_rendezvous_endpoint(chosen.rdzv_endpoint, default_port=-1)
        except ValueError:
            port = -1
    if port is not None and not least <= port <= LARGEST_PORT:
        form = "HOST:PORT with " if chosen.rdzv_endpoint else ""
        raise UsageError(
            f"got {option}, expected {form}a port from {least} to {LARGEST_PORT}. {HELP}"
        )


def _check_gpus(chosen: Namespace) -> None:
    """Raise UsageError for more ranks of a script with nccl than there are GPUs: otherwise each
    worker would fail by itself."""
    words = " ".join(chosen.training_script_args).replace("=", " ")
    wants_nccl = re.search(r"--(dist[-_])?backend nccl\b", words)
    if wants_nccl and int(chosen.nproc_per_node) > (gpus := torch.cuda.device_count()):
        raise UsageError(
            f"got --nproc-per-node={chosen.nproc_per_node} and a script with nccl, expected at "
            f"most {gpus}: NCCL needs a GPU of its own for every process, and this host has {gpus}"
        )


def _check_command(chosen: Namespace) -> None:
    """Raise UsageError if there is nothing to start: otherwise every worker would fail by
    itself."""
    script: str = chosen.training_script
    if chosen.no_python and chosen.module:
        raise UsageError(f"got --no-python and -m, expected one of the two. {HELP}")
    if chosen.no_python:
        if shutil.which(script) is None:
            raise UsageError(f"got {script!r}, expected a program: there is none that can be run")
    elif chosen.module:
        top = script.partition(".")[0]
        if "PYTHON_EXEC" not in os.environ and not _is_importable(top):
            raise UsageError(f"got -m {script}, but there is no module {top!r} to import")
    elif not any(path.is_file() for path in (Path(script), Path(script, "__main__.py"))):
        raise UsageError(f"got {script!r}, expected a Python script: there is no such file")


def _is_importable(top: str) -> bool:
    """Whether a worker, which has the working directory on its path, can import the module."""
    if not top:
        return False
    return top in sys.modules or bool(PathFinder.find_spec(top, [""]) or find_spec(top))


def _prepared(chosen: Namespace, folder: Path) -> Namespace:
    """The options with our worker file before the command, and with stderr kept to be shown
    again."""
    prepared = Namespace(**vars(chosen))
    prepared.log_dir = chosen.log_dir or str(folder)
    if hasattr(chosen, "signals_to_handle"):  # torch 2.9
        prepared.signals_to_handle = signals.without_ignored(chosen.signals_to_handle)
    if (chosen.tee, chosen.redirects) == ("0", "0"):
        prepared.tee = "2"
    if chosen.run_path or not dies_with_launcher():
        return prepared  # torch itself ends a function's process with its parent
    command = [chosen.training_script, *chosen.training_script_args]
    if not chosen.no_python:
        python = os.environ.get("PYTHON_EXEC", sys.executable)
        command = [python, "-u", *(["-m"] if chosen.module else []), *command]
    prepared.no_python, prepared.module = True, False
    prepared.training_script = sys.executable
    prepared.training_script_args = ["-I", "-S", worker.__file__, str(os.getpid()), *command]
    return prepared


@contextmanager
def _environment(
    chosen: Namespace, threads: int, interface: str | None, folder: Path
) -> Iterator[None]:
    """The environment that workers inherit.

    Workers of one node that use dpbench meet in a file, which the host's other users cannot reach.
    """
    before = dict(os.environ)
    if launch_store.is_one_node(chosen):
        meeting = OneHost(store_file=folder / "store")
        os.environ.update(meeting.variables())
    os.environ.setdefault(THREADS, str(threads))
    if interface is not None:
        os.environ.setdefault(GLOO_INTERFACE, interface)
    role = "" if chosen.role == "default" else "${role_name} "
    os.environ.setdefault(PREFIX, f"[{role}rank ${{rank}}] ")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
