"""Install the wheel beside several versions of Python and torch, use it, and say what passed.

`python -m tools.matrix [TORCH ...]` runs every cell, or those of the named torch versions. Each
cell is a new environment in a temporary folder, with the torch that pip finds for it: several
gigabytes for a build with CUDA, which also runs without a GPU. Interpreters come from PATH, or from
pyenv where it is installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PURE = ("analysis", "options", "report", "specs", "store")
"""Folders of tests that start no ranks."""
TINY = "--arch mlp --data synthetic --gpus 2 --oversubscribe --batch-sizes 8 --quiet"
EVERY_TRIAL = """
import dpbench, sys
trials = dpbench.load("results/matrix").trials
bad = trials[~trials.status.isin(["completed", "skipped"])]
sys.exit(bad.to_string() if len(bad) else 0 if len(trials) > 10 else "too few trials")
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One environment: a version of Python and one of torch, None for the newest."""

    python: str
    torch: str | None

    def __str__(self) -> str:
        return f"Python {self.python}, torch {self.torch or 'newest'}"


CELLS = (
    Cell("3.11", "2.9.0"),
    Cell("3.12", "2.11.0"),
    Cell("3.11", "2.13.0"),
    Cell("3.12", "2.13.0"),
    Cell("3.13", "2.13.0"),
    Cell("3.11", None),
)


def interpreter(version: str) -> Path:
    """The interpreter of a version such as "3.12"; raises SystemExit if there is none."""
    found = [
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python"),
        *(Path(path) for path in [shutil.which(f"python{version}")] if path),
    ]
    for path in found:
        if subprocess.run([path, "--version"], capture_output=True).returncode == 0:
            return path
    raise SystemExit(f"there is no Python {version} here")


def steps(binaries: Path) -> dict[str, list[str | Path]]:
    """The commands of a cell by what they show; each passes if it exits with 0."""
    dpbench = binaries / "dpbench"
    sweep = f"{TINY} --steps 5 --warmup 1 --repetitions 2 --name matrix --no-charts"
    backends = "--implementations dp,ddp,ddp-sharded,torch-ddp,fsdp2,single --backends gloo,shm"
    check = f"{TINY} --against torch-ddp --tolerance 90% --budget 30s"
    train = "--arch mlp --gpus 2 --oversubscribe --epochs 1 --limit-train 256 --quiet"
    tests = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{name}" for name in PURE)]
    return {
        "sweep": [dpbench, "sweep", *sweep.split(), *backends.split()],
        "every trial": [binaries / "python", "-c", EVERY_TRIAL],
        "train": [dpbench, "train", *train.split()],
        "check": [dpbench, "check", *check.split()],
        "pure tests": [binaries / "python", *tests],
    }


def installed(cell: Cell, wheel: Path, folder: Path) -> Path:
    """Make the environment of a cell and return the folder of its programs."""
    subprocess.run([interpreter(cell.python), "-m", "venv", folder / "env"], check=True)
    binaries = folder / "env" / "bin"
    torch = f"torch=={cell.torch}" if cell.torch else "torch"
    install: list[str | Path] = [binaries / "python", "-m", "pip", "install", "-qq"]
    subprocess.run([*install, "--upgrade", torch, f"{wheel}[dev]"], check=True)
    return binaries


def tried(cell: Cell, wheel: Path) -> dict[str, str]:
    """What each step of a cell came to: "passed", or the last line of what it printed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        binaries = installed(cell, wheel, folder)
        for part in ("tests", "results", "tools", "architectures"):
            shutil.copytree(ROOT / part, folder / part)
        outcome = {}
        version = "import torch; print(torch.__version__)"
        run = subprocess.run([binaries / "python", "-c", version], capture_output=True, text=True)
        outcome["torch"] = run.stdout.strip() or run.stderr.strip()[-200:]
        environment = os.environ | {"PYTHONPATH": "", "MPLBACKEND": "agg"}
        for title, command in steps(binaries).items():
            begin = time.monotonic()
            run = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True
            )
            lines = (run.stdout + run.stderr).strip().splitlines() or [""]
            outcome[title] = "passed" if run.returncode == 0 else f"{run.returncode}: {lines[-1]}"
            print(
                f"{cell}: {title}: {outcome[title]} ({time.monotonic() - begin:.0f} s)", flush=True
            )
            if run.returncode:
                print("\n".join(lines[-30:]), flush=True)
        return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("torch", nargs="*", help="only cells of these versions; 'newest' is one")
    wanted = parser.parse_args().torch
    cells = [cell for cell in CELLS if not wanted or (cell.torch or "newest") in wanted]
    with tempfile.TemporaryDirectory() as name:
        build = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "-w",
            name,
            str(ROOT),
        ]
        subprocess.run(build, check=True)
        wheel = next(Path(name).glob("*.whl"))
        outcomes = {cell: tried(cell, wheel) for cell in cells}
    for cell, outcome in outcomes.items():
        print(f"| {cell} | " + " | ".join(outcome.values()) + " |")
    failed = any(
        step != "passed" for o in outcomes.values() for k, step in o.items() if k != "torch"
    )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
