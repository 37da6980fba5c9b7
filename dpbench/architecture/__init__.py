"""Architectures: their protocol, and loading one by name.

An architecture is a module in `architectures/`, somebody's function in a module or a file, or a
model of a library that is installed (`naming` has the spellings). Nothing is imported but what a
name says, and nothing of torch by `names`, `check` and what else needs only the name.

    load            the object of a name
    check           is there such a thing?
    names           what ships with dpbench
    options         what can be said behind the name, with types and defaults
    LIBRARIES       whose models can be named, and missing_reason, why not here
    load_function   a function of the user's that is no architecture, and check_function
    is_theirs       would loading it run code that neither dpbench nor a library brings?
    make_importable lets such a name be of a module of the working directory
    split_names     of a list as it is typed
    folder_name     of results, where no other was given
    with_input_shape, items_per_sample, notes, sparse_gradients
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
