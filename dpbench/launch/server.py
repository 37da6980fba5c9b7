"""The server that ranks are forked from: it imports torch once, each rank inherits it."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

PRELOADED = ["dpbench.launch.rank", "dpbench.measure.trial", "torch._dynamo"]
"""The last is imported by every first torch.optim.Optimizer, and takes a second."""


def fork_server() -> ForkServerContext:
    """The context to start processes with. Whoever uses it first starts the server, so nobody
    may use it by another way: a server keeps the list that it was started with."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
