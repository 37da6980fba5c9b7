"""Imports of the server of ranks before it forks the first of them, without garbage collection.

Collections in between would walk all that torch has made so far, again and again, for a sixth of
the time; nothing that an import makes is garbage for long.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from dpbench.temporary import no_garbage_collection

with no_garbage_collection():
    for name in ("dpbench.launch.rank_process", "dpbench.measure.trial"):
        with suppress(ImportError):  # a rank that needs it says what is missing
            import_module(name)
    with suppress(ImportError):
        # Imports the compiler, as every first torch.optim.Optimizer does; it takes a second.
        import_module("torch").compiler.disable(no_garbage_collection)
