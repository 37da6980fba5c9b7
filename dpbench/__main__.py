"""The command `dpbench`, also as `python -m dpbench`.

Imports nothing heavy: the processes of every trial import this file again as their main module.
"""

from __future__ import annotations

import sys


def main() -> int:
    from dpbench.cli.streams import prepare_streams

    streams = prepare_streams(sys.argv[1:])
    from dpbench.run.interrupts import end_at_once

    end_at_once()
    from dpbench.cli.app import run

    status = run(sys.argv[1:])
    return streams.exit_status(status)


if __name__ == "__main__":
    sys.exit(main())
