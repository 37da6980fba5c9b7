"""Runs every fault as often as it says, or those whose name contains a word; prints the counts."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tests.faults import disk, host, parent, power, ranks, signals, soak, streams
from tests.faults.scenario import CannotTry, Scenario, Try

MODULES = (ranks, parent, signals, streams, disk, power, host, soak)
SCENARIOS = tuple(scenario for module in MODULES for scenario in module.SCENARIOS)
PROBLEMS_SHOWN = 3

# What is tried here inherits these, and a shell's `&` or nohup has set them to be ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("words", nargs="*", help="only scenarios with one of these in their name")
    parser.add_argument("--tries", type=int, help="at most so many tries of each")
    options = parser.parse_args(arguments)
    chosen = [s for s in SCENARIOS if not options.words or any(w in s.name for w in options.words)]
    if not chosen:
        parser.error(f"no scenario has {' or '.join(options.words)} in its name")
    broken = 0
    for scenario in chosen:
        tries = min(scenario.tries, options.tries or scenario.tries)
        broken += not _report(replace(scenario, tries=tries))
    return 1 if broken else 0


def _report(scenario: Scenario) -> bool:
    """Prints how many tries held, the slowest, and the problems; tells whether all held."""
    started = time.monotonic()
    try:
        tries = list(scenario.run(scenario.tries))
    except CannotTry as reason:
        print(f"{scenario.name}: not tried here: {reason}", flush=True)
        return True
    held = [one for one in tries if one.problem is None]
    slowest = _slowest(tries)
    took = time.monotonic() - started
    print(
        f"{scenario.name}: {len(held)} of {len(tries)} held ({scenario.promise})"
        f"{slowest}; {took:.0f} s",
        flush=True,
    )
    problems = Counter(one.problem for one in tries if one.problem)
    for problem, count in problems.most_common(PROBLEMS_SHOWN):
        print(f"  {count} × {problem}", flush=True)
    return len(held) == len(tries)


def _slowest(tries: Sequence[Try]) -> str:
    seconds = [one.seconds for one in tries if one.seconds is not None]
    return f", after {max(seconds):.2f} s at the latest" if seconds else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
