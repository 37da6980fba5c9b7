"""Map-style datasets: samples that are taken one by one, and collated into batches.

They belong to the user, as "path/to/file.py:dataset" or "package.module:dataset": a function that
returns a torch.utils.data.Dataset whose items are (input, target). It is loaded only if the command
line names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

from dpbench.architecture import load_function
from dpbench.architecture.user_errors import described, seeded, user_errors_in
from dpbench.data.batch import Samples
from dpbench.errors import UsageError


class UserDataset:
    """Batches of items, in host memory."""

    def __init__(self, items: Any) -> None:
        self.items = items
        """The user's map-style dataset, as torch's DataLoader takes it: with __len__ and
        __getitem__."""

    def __len__(self) -> int:
        return len(self.items)

    def select(self, indices: torch.Tensor) -> tuple[Samples, Samples]:
        """Inputs and targets of the items at `indices`.

        As in torch's DataLoader, a dataset with `__getitems__` fetches them all at once.
        """
        wanted = indices.tolist()
        fetch_all = getattr(self.items, "__getitems__", None)
        items = [self.items[index] for index in wanted] if fetch_all is None else fetch_all(wanted)
        inputs, targets = collate(items)
        return inputs, targets


def load_user_dataset(name: str, *, seed: int) -> UserDataset:
    """The dataset that the user's function `name` returns.

    Global random numbers are seeded for it, so that every rank gets the same dataset. Raises
    UsageError for a function that cannot be loaded, raises, or returns something else.
    """
    make = load_function(name, "dataset")
    title = f"dataset {name!r}"
    with seeded(seed), user_errors_in(title, "making it"):
        made = make()
    is_map = hasattr(made, "__len__") and hasattr(made, "__getitem__")
    if not is_map or isinstance(made, IterableDataset):
        raise UsageError(
            f"{title}: it returned {described(made)}; expected a map-style "
            "torch.utils.data.Dataset, with __len__ and __getitem__"
        )
    with user_errors_in(title, "its length"):
        samples = len(made)
    if samples < 1:
        raise UsageError(f"{title}: it has no items; expected at least 1")
    return UserDataset(made)


def collate(items: Sequence[Any]) -> Any:
    """A batch like that of torch's default_collate, except that tuples stay tuples.

    To a model a list is one input, a tuple its positional arguments: see data.batch.call.
    """
    first = items[0]
    if isinstance(first, Mapping):
        return {key: collate([item[key] for item in items]) for key in first}
    if isinstance(first, (tuple, list)):
        parts = [collate(part) for part in zip(*items, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return default_collate([*items])
