"""What every test gets: a small heap to collect, one thread of torch's, and one server that all
ranks are forked from.

And in which order workers take the files.
"""

from __future__ import annotations

import gc
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from dpbench.launch import fork_server
from dpbench.launch.signals import ENDING

# What the modules import whose functions ranks run. The first test that starts a process starts
# the server of all, which would not import it otherwise: every rank would, for 0.2 s.
fork_server.PRELOADED += ["psutil", "pytest"]

# A suite that is started in the background, or by nohup, ignores these, and what it starts would
# too; the commands under test are started as by hand.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# A busy machine is no defect of what is tested; tools/benchmarks measures speed.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Few files have tests with these marks; importing all the others takes longer than they do,
    and the libraries of long tests may be missing."""
    mark = config.option.markexpr
    if not mark or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    if mark in ("alone", "faults", "full", "gpu"):
        return None if f"mark.{mark}" in text else True
    is_long = re.search(r"^pytestmark = \[?pytest\.mark\.(full|faults)\b", text, re.MULTILINE)
    return True if is_long and "not full" in mark else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests come first where workers share them: none waits for another's last."""
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What tests compute gains nothing from more threads of torch's than one.

    They would spin for cores that other tests have. A test may have changed it, as a rank does.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    if (gpu := item.get_closest_marker("gpu")) is not None:
        import torch

        needed = gpu.args[0] if gpu.args else 1
        if torch.cuda.device_count() < needed:
            pytest.skip(f"needs {needed} CUDA {'device' if needed == 1 else 'devices'}")


@pytest.fixture(scope="module", autouse=True)
def _collections_are_short() -> None:
    """A measured window starts with a collection, which takes 0.2 s to walk what torch imports."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a command in this very process: empty, and gone afterwards."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def synthetic() -> Iterator[None]:
    """Commands get their numbers from a cost model, and start no ranks."""
    from tests.launch import synthetic  # imports torch

    with synthetic.in_use():
        yield


@pytest.fixture
def signals() -> Iterator[None]:
    """Measuring changes what a signal does; tests go on afterwards."""
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def torchrun_here(signals: None) -> Iterator[None]:
    """torchrun runs in this very process, and leaves files for the collector."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
