"""The command `dpbench`, also as `python -m dpbench`.

Imports nothing heavy: the processes of every trial import this file again as their main module.
"""

from __future__ import annotations

import sys


def main() -> int:
    from dpbench.cli.app import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
