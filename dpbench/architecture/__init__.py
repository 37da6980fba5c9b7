"""Architectures: their protocol, and loading one by name.

An architecture is a module in `architectures/`, a function in your own module or file, or a model
of an installed library (`naming` has the spellings). `names`, `check` and everything else that only
needs the name import neither torch nor an architecture.
"""

from __future__ import annotations

from dpbench.architecture.loading import Option, load, options
from dpbench.architecture.naming import (
    LIBRARIES,
    LONGEST_FOLDER_NAME,
    folder_name,
    is_theirs,
    make_importable,
    split_names,
    with_input_shape,
)
from dpbench.architecture.protocol import (
    Architecture,
    CountsCorrect,
    items_per_sample,
    notes,
    sparse_gradients,
)
from dpbench.architecture.sources import check, check_function, load_function, missing_reason, names

__all__ = [
    "LIBRARIES",
    "LONGEST_FOLDER_NAME",
    "Architecture",
    "CountsCorrect",
    "Option",
    "check",
    "check_function",
    "folder_name",
    "is_theirs",
    "items_per_sample",
    "load",
    "load_function",
    "make_importable",
    "missing_reason",
    "names",
    "notes",
    "options",
    "sparse_gradients",
    "split_names",
    "with_input_shape",
]
