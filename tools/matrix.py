"""Install the wheel beside other versions of Python and torch, and use it.

Each environment is new, with the torch that pip finds for it. Interpreters come from PATH; with
pyenv, PYENV_VERSION=3.11:3.12:3.13 puts them there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CELLS = (("3.11", "2.9.0"), ("3.12", "2.11.0"), ("3.13", "2.13.0"), ("3.11", "newest"))
"""Versions of Python and torch."""
TINY = "--arch mlp --data synthetic --gpus 2 --oversubscribe --batch-sizes 8 --quiet"
STEPS = (
    f"dpbench sweep {TINY} --steps 5 --warmup 1 --repetitions 2 --name matrix --no-charts"
    " --implementations dp,ddp,ddp-sharded,torch-ddp,fsdp2,single --backends gloo,shm",
    f"dpbench check {TINY} --against torch-ddp --tolerance 90% --budget 30s",
    "dpbench train --arch mlp --gpus 2 --oversubscribe --epochs 1 --limit-train 256 --quiet",
    "python -m pytest -q -p no:cacheprovider tests/analysis tests/options tests/report tests/store",
)
"""What each environment runs; every command has to exit with 0."""


def passes(python: str, torch: str, folder: Path) -> bool:
    """Whether all steps pass in a new environment below the folder."""
    (wheel,) = folder.glob("*.whl")
    place = folder / f"{python}-{torch}"
    subprocess.run([f"python{python}", "-m", "venv", place / "env"], check=True)
    binaries = place / "env" / "bin"
    wanted = "torch" if torch == "newest" else f"torch=={torch}"
    subprocess.run([binaries / "pip", "install", "-qq", wanted, f"{wheel}[dev]"], check=True)
    for part in ("tests", "results", "tools", "architectures"):
        shutil.copytree(ROOT / part, place / part)
    passed = True
    for step in STEPS:
        program, *words = step.split()
        status = subprocess.run([binaries / program, *words], cwd=place, check=False).returncode
        print(f"Python {python}, torch {torch}: {step[:40]} … exits with {status}", flush=True)
        passed &= status == 0
    return passed


def main(versions: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, str(ROOT)]
        subprocess.run(build, check=True)
        wanted = [cell for cell in CELLS if not versions or cell[1] in versions]
        passed = [passes(*cell, Path(folder)) for cell in wanted]
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
