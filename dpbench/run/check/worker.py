"""The program that measures a version for a check: the other end of `VersionProcess`.

Like `__main__` it imports nothing heavy at the top, as ranks import their main module again.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Answer until stdin ends; the exit status. What else would be printed goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    from dpbench.run.check.versions import answer_messages

    return answer_messages(answers)


if __name__ == "__main__":
    sys.exit(main())
