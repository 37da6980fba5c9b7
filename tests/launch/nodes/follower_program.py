"""A node that follows, as a process of its own: python -m tests.launch.nodes.follower_program PORT
FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

from dpbench.data.user_code import NamedCode
from dpbench.launch.nodes.follower import follow
from tests.launch.nodes.builders import node, request


def main(port: str, folder: str) -> None:
    print(
        follow(
            request(1, int(port), join_timeout_seconds=60.0),
            node(1),
            prepare=lambda _: None,
            logs=Path(folder) / "logs",
            traces=Path(folder) / "traces",
            say=print,
        )
    )


if __name__ == "__main__":
    # Stands for several commands one after the other: each trial has an architecture of its own.
    with mock.patch.object(NamedCode, "refusal", return_value=None):
        main(*sys.argv[1:])
