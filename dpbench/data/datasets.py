"""The samples that a rank trains on and is tested with: tensors of dpbench's datasets, or items of
the user's.

The user's is named as "path/to/file.py:dataset" or "package.module:dataset": a function that
returns a map-style torch.utils.data.Dataset whose items are (input, target). They are taken one by
one, and collated into batches. It is loaded only if the command line names it.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

from dpbench.architecture import Architecture, load_function
from dpbench.architecture.naming import parse_name
from dpbench.architecture.user_errors import described, seeded, user_errors_in
from dpbench.data import registry
from dpbench.data.batch import Samples, named_leaves, sample_count
from dpbench.errors import UsageError
from dpbench.messages import option_words
from dpbench.parallel.agreement import tensors_sha256
from dpbench.parallel.tree import map_leaves, tensors
from dpbench.specs import WorkloadSpec
from dpbench.units import counted

SYNTHETIC_SAMPLES = 4096
SYNTHETIC_BYTES = 256 * 2**20
"""Bytes of the synthetic samples unless a number of samples is given: most memory that they take in
every process."""
DIGIT = "1×28×28 float32 with one int64"
"""Inputs and target of a sample of the stored datasets."""
TRAIN_PER_TEST_SAMPLE = 4
"""Synthetic training samples for each test sample."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Dataset:
    """Samples and their targets. Raises UsageError unless all parts have as many samples."""

    inputs: Samples
    """Inputs, in the form that `data.batch.call` passes to the model; each tensor is (samples,
    …)."""
    targets: Samples
    """Targets, in the form that the loss takes; each tensor is (samples, …)."""

    def __post_init__(self) -> None:
        sample_count(inputs=self.inputs, targets=self.targets)

    def __len__(self) -> int:
        return sample_count(inputs=self.inputs)

    def select(self, indices: torch.Tensor | slice) -> tuple[Samples, Samples]:
        """Inputs and targets of the samples at `indices`: copies, or views for a slice."""
        inputs, targets = map_leaves(lambda tensor: tensor[indices], (self.inputs, self.targets))
        return inputs, targets

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Dataset:
        """The samples on `device`, floating-point ones in `dtype` if it is given."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device, dtype if tensor.is_floating_point() else None)

        inputs, targets = map_leaves(moved, (self.inputs, self.targets))
        return Dataset(inputs=inputs, targets=targets)

    def part(self, first: int, end: int) -> Dataset:
        """Samples `first` to `end` - 1, sharing their memory."""
        inputs, targets = self.select(slice(first, end))
        return Dataset(inputs=inputs, targets=targets)


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Splits:
    """Training samples, and held-out test samples."""

    train: Dataset
    test: Dataset

    @cached_property
    def sha256(self) -> str:
        """Hash of all tensors, in hexadecimal. In a tree their places count as well."""
        named = {"train": self.train, "test": self.test}.items()
        trees = (named_leaves((one.inputs, one.targets), name) for name, one in named)
        return tensors_sha256(chain.from_iterable(trees))

    def save(self, file: Path) -> None:
        """Write the samples into a file for `read`; raises UsageError if it cannot be written."""
        try:
            torch.save([(one.inputs, one.targets) for one in (self.train, self.test)], file)
        except (OSError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise UsageError(
                f"cannot write the prepared dataset into {file.parent}: {reason}"
            ) from None

    @classmethod
    def read(cls, file: Path) -> Splits:
        """Samples that were saved, memory-mapped: the ranks of a host share one copy, and a write
        changes only the writer's."""
        pairs = torch.load(file, mmap=True, weights_only=True)
        for tensor in tensors(pairs):
            # Touches every page now; otherwise the page faults would fall into the timed window.
            tensor.flatten()[:: mmap.PAGESIZE // tensor.element_size()].sum()
        train, test = (Dataset(inputs=inputs, targets=targets) for inputs, targets in pairs)
        return cls(train=train, test=test)


def load_splits(
    workload: WorkloadSpec,
    prepared: Path | None,
    architecture: Architecture,
    train_samples: int | None = None,
) -> Splits:
    """Both splits of the workload's dataset, on the CPU, the same in every process.

    A stored dataset comes from the folder `prepared`, where `registry.prepare_dataset` put it; only
    its first `train_samples` training samples are taken, if that is given. The synthetic one has
    that many, or `synthetic_samples`, and a quarter as many test samples; both are generated
    together, so that they belong to the same task.
    """
    name, seed = workload.dataset, workload.seed
    if name == registry.SYNTHETIC:
        count = train_samples or synthetic_samples(architecture)
        test_count = max(1, count // TRAIN_PER_TEST_SAMPLE)
        both = synthetic_dataset(architecture, seed=seed, samples=count + test_count)
        return Splits(train=both.part(0, count), test=both.part(count, len(both)))
    assert prepared is not None
    stored = Splits.read(registry.prepared_file(prepared, name))
    return Splits(train=stored.train.part(0, train_samples or len(stored.train)), test=stored.test)


def synthetic_samples(architecture: Architecture) -> int:
    """The default number of synthetic samples; at least 1."""
    one = synthetic_dataset(architecture, seed=0, samples=1)
    nbytes = sum(tensor.nbytes for tensor in tensors([one.inputs, one.targets]))
    return max(1, min(SYNTHETIC_SAMPLES, SYNTHETIC_BYTES // nbytes))


def synthetic_dataset(architecture: Architecture, *, seed: int, samples: int) -> Dataset:
    """So many samples of the architecture, on the CPU, the same in every process; raises UsageError
    for another number."""
    inputs, targets = architecture.synthetic_batch(samples, torch.Generator().manual_seed(seed))
    dataset = Dataset(inputs=inputs, targets=targets)
    if len(dataset) != samples:
        raise UsageError(
            f"synthetic_batch({samples}) returned {counted(len(dataset), 'sample')}; expected as "
            "many as asked for"
        )
    return dataset


def load_user_dataset(name: str, *, seed: int) -> UserDataset:
    """The dataset that the user's function `name` returns.

    Global random numbers are seeded for it, so that every rank gets the same dataset. Raises
    UsageError for a function that cannot be loaded, raises, or returns something else.
    """
    make = load_function(parse_name(name, "dataset"))
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


def check_fits(name: str, architecture: Architecture, *, named: str) -> None:
    """Raise UsageError unless `architecture` accepts the samples; the message calls it `named`.

    An architecture accepts samples that look like its own synthetic batch. Neither are samples read
    nor is its model run, which takes long for a large one: one that has too few classes fails in
    its first step.
    """
    if name == registry.SYNTHETIC:
        return
    try:
        one = synthetic_dataset(architecture, seed=0, samples=1)
    except Exception:  # a user's, without a synthetic batch
        return
    takes = " with ".join(
        " and ".join(
            f"{'×'.join(map(str, tensor.shape[1:])) or 'one'} "
            f"{str(tensor.dtype).removeprefix('torch.')}"
            for tensor in tensors(tree)
        )
        for tree in (one.inputs, one.targets)
    )
    if takes != DIGIT:
        raise UsageError(
            f"{option_words('data', name)} does not fit {option_words('arch', named)}: a sample is "
            f"{DIGIT}, the architecture takes {takes}; take another architecture, or "
            f"{option_words('data', registry.SYNTHETIC)}, which it generates"
        )
