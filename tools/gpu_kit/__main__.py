"""Runs the parts that were not run yet, and writes a summary after each of them."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import monotonic

import torch

from tools.gpu_kit.part import ROOT, Part, Verdict, run, skipped, table
from tools.gpu_kit.parts import Place, parts

SUMMARY = "summary.json"
SHORTEST_SECONDS = 30.0
"""A part is not started with less time than this: it would only be cut off."""


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if not options.rehearse and not torch.cuda.is_available():
        print("no CUDA device here; --rehearse runs the same parts on the CPU", file=sys.stderr)
        return 2
    folder = ROOT / "results" / ("rehearsal" if options.rehearse else gpu_name())
    everything = parts(Place(folder=str(folder), rehearse=options.rehearse))
    wanted = [part for part in everything if _is_chosen(part, options.parts)]
    if not wanted:
        known = ", ".join(dict.fromkeys(part.name.split("-")[0] for part in everything))
        print(f"--parts {options.parts}: no such part; expected some of {known}", file=sys.stderr)
        return 2
    if options.list:
        for part in wanted:
            print(f"{part.name:24} {part.limit_seconds:4.0f} s at most  {' '.join(part.command)}")
        return 0
    gpus = None if options.rehearse else torch.cuda.device_count()
    return run_all(wanted, folder, options.seconds, again=options.again, gpus=gpus)


def run_all(
    wanted: Sequence[Part], folder: Path, seconds: float, *, again: bool, gpus: int | None = None
) -> int:
    """Run parts until the time is up; return 0 if all have passed by now, else 1.

    With `gpus`, a part that needs more of them is skipped, which counts as passed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = read_summary(folder)
    until = monotonic() + seconds
    for part in wanted:
        if part.name in done and done[part.name].verdict == "passed" and not again:
            continue
        left = until - monotonic()
        if left < min(SHORTEST_SECONDS, part.limit_seconds):
            print(f"time is up before {part.name}; the same command goes on from there")
            break
        if gpus is not None and gpus < part.gpus:
            done[part.name] = skipped(part, gpus)
        else:
            limit = min(part.limit_seconds, left)
            done[part.name] = run(replace(part, limit_seconds=limit), folder)
        one = done[part.name]
        print(f"{one.name}: {one.verdict} after {one.seconds:.0f} s; {one.detail}", flush=True)
        write_summary(folder, done)
    verdicts = [done[part.name].verdict for part in wanted if part.name in done]
    passed = sum(verdict in ("passed", "skipped", "nothing to run") for verdict in verdicts)
    print(f"{passed} of {len(wanted)} parts passed; {folder / 'summary.md'} has all")
    return 0 if passed == len(wanted) else 1


def read_summary(folder: Path) -> dict[str, Verdict]:
    """The verdicts so far by their parts; none if there is no summary."""
    try:
        stored = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return {one["name"]: Verdict(**one | {"rows": tuple(one["rows"])}) for one in stored}


def write_summary(folder: Path, done: dict[str, Verdict]) -> None:
    verdicts = list(done.values())
    text = json.dumps([asdict(one) for one in verdicts], indent=1, ensure_ascii=False)
    (folder / SUMMARY).write_text(f"{text}\n", encoding="utf-8")
    where = f"torch {torch.__version__}, Python {sys.version.split()[0]}, {gpu_name() or 'no GPU'}"
    head = f"# Parts of the GPU kit\n\n{where}\n\n"
    (folder / "summary.md").write_text(head + table(verdicts), encoding="utf-8")


def gpu_name() -> str:
    """The first GPU's name as a folder has it: "NVIDIA H200" is h200; empty without CUDA."""
    if not torch.cuda.is_available():
        return ""
    name = torch.cuda.get_device_name(0).lower().removeprefix("nvidia").strip()
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")


def _is_chosen(part: Part, chosen: str | None) -> bool:
    """By its whole name, or the group before the first dash."""
    wanted = None if chosen is None else [word.strip() for word in chosen.split(",")]
    return wanted is None or any(part.name == w or part.name.startswith(f"{w}-") for w in wanted)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__)
    parser.add_argument("--parts", metavar="A,B", help="only these parts, or groups of them")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with small models")
    parser.add_argument("--again", action="store_true", help="also what has passed already")
    parser.add_argument("--list", action="store_true", help="print the parts, run none")
    parser.add_argument(
        "--seconds", type=float, default=570.0, help="start no part after so long (570)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
