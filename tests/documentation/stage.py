"""The place where the commands of one document run: small, and without what only a cluster has.

Everything is run but the work of ranks: sweeps, checks and collectives take their numbers from the
synthetic launcher. Trainings, `launch`, and checks of two versions of a file start real processes
and do very little in them. What a command only reads is there: files that the document shows, and
results (the example that ships) that no earlier command of the document has made.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch

import dpbench
from dpbench.cli.app import run
from dpbench.cli.init import TEMPLATE
from dpbench.data.mnist_download import SOURCE_VARIABLE
from dpbench.launch import allocator_gain
from dpbench.launch.nodes.node import NodeRequest
from dpbench.launch.signals import ENDING
from dpbench.run.gate.check_worker import Worker
from dpbench.run.gate.side import SidePlace, SideProcess
from dpbench.run.sweep.nodes import free_port
from dpbench.temporary import temporary_folder
from tests.benchmarks import published_tables
from tests.cli.test_doctor import GAIN
from tests.documentation import ROOT
from tests.documentation.outputs import without_charts
from tests.documentation.shown import Shown
from tests.launch import synthetic
from tests.launch.readings import QUIET
from tests.launch.synthetic import SyntheticLauncher

EXAMPLE = ROOT / "results" / "examples" / "two-cores"
RESULTS = re.compile(r"results/(?!examples|published)[\w-]+")
BESIDE = ("--against-ref", "--against-arch", "--against-python")
"""With which `check` measures each side in a process of its own."""
HOSTS = re.compile(r"\bhost[01]\b|10\.0\.0\.1|dpbench-0\.dpbench")
PORTS = re.compile(r"\b295\d\d\b")
LIBRARIES = ("timm", "torchvision", "transformers")
PROGRAM = "import sys\nprint(*sys.argv[1:])\n"
IMPATIENT = functools.partial(NodeRequest, join_timeout_seconds=1.0)
"""A node that waits for the others for a second only."""
FILES = {
    "my_model.py": TEMPLATE.read_text(),
    "model.py": TEMPLATE.read_text(),
    "other.py": TEMPLATE.read_text(),
    "train.py": PROGRAM,
    "hello.py": PROGRAM,
    "package/hello.py": PROGRAM,
    "token": f"{'0a' * 16}\n",
    "table.csv": (ROOT / "results/published/torch_ddp_rtx3090.csv").read_text(),
    "path/to/venv/bin/python": f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "$@"\n',
}
"""What commands read and no document shows."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended."""

    status: int
    said: str
    """The end of what it printed on stderr."""


@dataclass
class Stage:
    """A folder with what the commands of one document find there."""

    folder: Path
    shown_files: dict[str, str]
    """Those of the document, which go before `FILES`."""
    borrowed: set[Path] = field(default_factory=set)
    """What no command of the document has made."""

    def __post_init__(self) -> None:
        (self.folder / "results").mkdir(parents=True)
        for name in ("examples", "published"):
            (self.folder / "results" / name).symlink_to(ROOT / "results" / name)
        for name, text in {**FILES, **self.shown_files}.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o700)
            self.borrowed.add(path)

    def play(self, command: Shown) -> Ending:
        """Runs one command."""
        said = io.StringIO()
        with self._inside(command), contextlib.redirect_stderr(said):
            self._give_way(command)
            self._lend(command)
            status = run(smaller(command))
        return Ending(status, said.getvalue()[-2000:])

    @contextlib.contextmanager
    def _inside(self, command: Shown) -> Iterator[None]:
        handlers = {number: signal.getsignal(number) for number in ENDING}
        variables = {
            "COLUMNS": "100",
            "NO_COLOR": "1",
            SOURCE_VARIABLE: "http://127.0.0.1:9/nobody-listens-here",
            **dict(command.variables),
            **({} if needs_launcher(command) else synthetic.VARIABLES),
        }
        try:
            with (
                _own_modules(),
                _torchs_files_left_open(command),
                contextlib.chdir(self.folder),
                mock.patch.dict(os.environ, variables),
                _first_rank() if command.in_rank else contextlib.nullcontext(),
                contextlib.redirect_stdout(io.StringIO()),
                mock.patch("webbrowser.open"),
                mock.patch("dpbench.launch.readings.take_readings", return_value=QUIET),
                mock.patch.object(allocator_gain, "measure_allocator_gain", return_value=GAIN),
                mock.patch("dpbench.run.sweep.nodes.NodeRequest", IMPATIENT),
                mock.patch("dpbench.launch.agent.ElasticLauncher", _synthetic),
                mock.patch("dpbench.run.gate.beside.start_side", _side_here),
                mock.patch("dpbench.run.gate.check_worker.ElasticLauncher", _synthetic),
                _restored(dpbench.DistributedDataParallel, "forward"),  # planted.py has its own
            ):
                yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _give_way(self, command: Shown) -> None:
        """What the command makes is not there yet, unless a command of the document has made it."""
        made = [command.words[1]] if command.name == "init" else []
        if name := command.value("--name"):
            made.append(f"results/{name}")
        for path in {self.folder / name for name in made} & self.borrowed:
            self.borrowed.remove(path)
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _lend(self, command: Shown) -> None:
        """Results that the command reads: for a gate measured here, else those of the example."""
        named = set(RESULTS.findall(str(command))) - {f"results/{command.value('--name')}"}
        for name in sorted(name for name in named if not (self.folder / name).exists()):
            self.borrowed.add(self.folder / name)
            baseline = Path(command.value("--baseline") or "")
            if command.name == "check" and baseline.is_dir():
                shutil.copytree(baseline, name)
            elif command.name == "check":
                arch = command.value("--arch")
                words = ["sweep", "--name", Path(name).name, *(["--arch", arch] if arch else [])]
                assert run([*words, "--no-charts"]) == 0
            else:
                shutil.copytree(EXAMPLE, name)
        if "hold-outs.csv" in command.words:
            assert published_tables.main(["--residuals", "hold-outs.csv"]) == 0
        if "--against-ref" in command.words and not Path(".git").exists():
            _commit_all(command.value("--against-ref") or "")


@contextlib.contextmanager
def _torchs_files_left_open(command: Shown) -> Iterator[None]:
    """torchrun leaves the files of its workers' output to the end of its process."""
    with warnings.catch_warnings():
        if command.name == "launch":
            warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield
        finally:
            if command.name == "launch":
                gc.collect()


@contextlib.contextmanager
def _first_rank() -> Iterator[None]:
    """What torchrun tells the first of two ranks on two nodes, and the store that it keeps."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {
        **dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0"),
        **dict.fromkeys(("WORLD_SIZE", "GROUP_WORLD_SIZE"), "2"),
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RUN_ID": "run",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "DPBENCH_TOKEN": FILES["token"].strip(),
    }
    with mock.patch.dict(os.environ, variables):
        yield


class SideHere(SideProcess):
    """A side of a check that has no process of its own, and says the same."""

    def __init__(self, place: SidePlace, scratch: Path) -> None:
        self.place = place
        self._worker = Worker(scratch)

    def _ask(self, **request: Any) -> dict[str, Any]:
        with contextlib.chdir(self.place.directory), _own_modules():
            answer = json.loads(json.dumps(self._worker.answer(request)))
        assert "error" not in answer, answer
        return answer


@contextlib.contextmanager
def _own_modules() -> Iterator[None]:
    """Inside, no file of a user's is imported, as in a process of its own; nor is any kept."""
    path, outside = [*sys.path], _modules_of_users()
    for name in outside:
        del sys.modules[name]
    sys.path[:] = [entry for entry in path if not _is_temporary(entry)]
    try:
        yield
    finally:
        sys.path[:] = path
        for name in _modules_of_users():
            del sys.modules[name]
        sys.modules.update(outside)


def _modules_of_users() -> dict[str, ModuleType]:
    return {
        name: module
        for name, module in sys.modules.items()
        if _is_temporary(getattr(module, "__file__", None) or "")
    }


def _is_temporary(path: str) -> bool:
    """Whether a document's file is meant, and not a checkout that lies among temporary files.

    Texts are compared, as thousands of modules are asked each time and paths would take seconds.
    """
    return path.startswith(f"{tempfile.gettempdir()}/") and not path.startswith(f"{ROOT}/")


@contextlib.contextmanager
def _side_here(place: SidePlace) -> Iterator[SideHere]:
    with temporary_folder() as scratch:
        yield SideHere(place, scratch)


def needs_launcher(command: Shown) -> bool:
    """Whether the command does what the launchers of the tests cannot."""
    return command.name not in ("sweep", "check", "comm") or (
        "max" in command.words or any(option in command.words for option in BESIDE)
    )


def _synthetic(*_: object, **__: object) -> SyntheticLauncher:
    return SyntheticLauncher()


@contextlib.contextmanager
def _restored(holder: Any, name: str) -> Iterator[None]:
    before = getattr(holder, name)
    try:
        yield
    finally:
        setattr(holder, name, before)


def smaller(command: Shown) -> list[str]:
    """The words to run: the same command, with less to do for its ranks."""
    port = str(free_port("127.0.0.1"))
    words = [PORTS.sub(port, HOSTS.sub("localhost", word)) for word in command.words]
    if command.name == "launch" and command.spans_nodes:
        words[1:1] = ["--rdzv-conf", "timeout=1,join_timeout=1"]
    if command.name in ("sweep", "check", "comm"):
        words += ["--oversubscribe"] if {"--gpus", "--threads"} & {*words} else []
    elif "train" in words:
        words += _less_training(command)
    return [*words, *without_charts(command.name)]


def _less_training(command: Shown) -> list[str]:
    """A run that goes on has the options that it was started with."""
    if command.value("--resume") not in (None, "auto"):
        return []
    arch = [] if command.value("--arch") else ["--arch", "mlp:width=8"]
    few = (
        []
        if command.value("--epochs")
        else ["--limit-train", "16", "--batch-size", "4", "--epochs", "1"]
    )
    return [*arch, *few]


def expected(command: Shown) -> tuple[set[int], str]:
    """The exit statuses of a command here, and a pattern of what it says on stderr."""
    library = (command.value("--arch") or "").partition(":")[0]
    if library in LIBRARIES and importlib.util.find_spec(library) is None:
        return {2}, rf"dpbench: .*pip install 'dpbench\[{library}\]'\n"
    if command.spans_nodes:
        return {1, 2}, r"dpbench: .*(node [01] did not|waiting for clients. 1/2).*\n"
    if command.value("--nproc-per-node") == "gpu" and not torch.cuda.is_available():
        return {2}, r"dpbench: Cuda is not available\..*\n"
    if "--download" in command.words:
        return {2}, r"dpbench: .*nobody-listens-here.*\n"
    return {0}, ""


def _commit_all(revision: str) -> None:
    """A repository whose only commit is the revision."""
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    remote = f"refs/remotes/{revision}"
    for words in (
        ("init", "-q"),
        ("add", "*.py"),
        ("commit", "-qm", "x"),
        ("update-ref", remote, "HEAD"),
    ):
        subprocess.run(["git", *author, *words], check=True, capture_output=True)
