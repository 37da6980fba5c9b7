"""Checkpoints: the whole state of a training, from which it goes on as if never interrupted.

The file of one is a torch.save of plain values, which torch.load(weights_only=True) reads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from dpbench.codec import decode, encode
from dpbench.errors import StoreError, UsageError
from dpbench.specs.training import TrainingSpec
from dpbench.specs.traits import IMPLEMENTATIONS
from dpbench.training import archive
from dpbench.training.archive import HostBuffers

MAGIC = "dpbench training checkpoint"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Checkpoint:
    """The state of a training between two optimizer steps.

    The tensors of a checkpoint read from a file are on the CPU.
    """

    spec: TrainingSpec
    epoch: int
    """Epoch to continue with, from 0."""
    window: int
    """Window of that epoch to continue with, from 0."""
    step: int
    """Number of optimizer steps done."""
    model: dict[str, Tensor]
    """The state dict of the bare module."""
    optimizers: list[dict[str, Any]]
    """State dicts of the optimizer: one, or one per process if the ranks' differ. Options are not
    restored from a file: they follow from spec and step, also the learning rate."""
    scaler: dict[str, Any] | None
    """State of the loss scaler; None if the loss is not scaled."""
    random_states: list[dict[str, Any]]
    """Random states of the processes, see `random_state`."""
    shares: tuple[float, ...]
    """Shares of the processes in this epoch's batches; () if they are equal."""
    samples_sha256: str
    """`Splits.sha256` of the training and test samples."""
    best_metric: float | None
    """`Score.metric` of the best epoch so far."""
    progress: dict[str, Any] = field(default_factory=dict)
    """Running sums of the epoch: plain numbers."""
    source: str | None = None
    """File from which it was read; not stored."""


_STORED = tuple(f.name for f in fields(Checkpoint) if f.name not in ("spec", "shares", "source"))


def to_plain(checkpoint: Checkpoint) -> dict[str, Any]:
    """The stored parts of `checkpoint`."""
    return {
        "kind": MAGIC,
        "format_version": FORMAT_VERSION,
        "spec": encode(checkpoint.spec),
        "shares": list(checkpoint.shares),
        **{name: getattr(checkpoint, name) for name in _STORED},
    }


def to_bytes(checkpoint: Checkpoint) -> bytes:
    """The content of the checkpoint's file; raises TypeError for parts that are not plain."""
    return archive.dumps(HostBuffers().take(to_plain(checkpoint)))


def from_bytes(data: bytes, where: str) -> Checkpoint:
    """The checkpoint whose file, called `where`, has this content.

    Raises UsageError in one line, with the file and the reason, for anything that is not a whole
    checkpoint of this format. Nothing in `data` is executed.
    """
    content = archive.loads(data, where)
    _require_ours(content, where)
    spec = _spec(content.get("spec"), where)
    for name, (expected, fits) in _EXPECTED.items():
        if name not in content or not fits(content[name]):
            got = type(content[name]).__name__ if name in content else "nothing"
            raise UsageError(f"{where}: its {name!r} is {got}; expected {expected}")
    _require_counts(content, spec, where)
    stored = {name: content[name] for name in _STORED}
    return Checkpoint(spec=spec, shares=tuple(content["shares"]), source=where, **stored)


def _require_ours(content: Any, where: str) -> None:
    if not isinstance(content, dict) or content.get("kind") != MAGIC:
        raise UsageError(
            f"{where}: this is no checkpoint of dpbench train, but {_describe(content)}"
        )
    version = content.get("format_version")
    if type(version) is not int:
        raise UsageError(f"{where}: it has no format version")
    if version > FORMAT_VERSION:
        raise UsageError(
            f"{where}: it has format version {version}, and this dpbench reads up to "
            f"{FORMAT_VERSION}; upgrade dpbench to read it"
        )


def _spec(value: Any, where: str) -> TrainingSpec:
    try:
        as_json = json.loads(json.dumps(value))  # has no tensors, and only string keys
        spec = decode(TrainingSpec, as_json)
    except (StoreError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{where}: {archive.one_line(str(error))}") from None
    if spec.implementation not in IMPLEMENTATIONS:
        name = archive.one_line(spec.implementation)
        raise UsageError(f"{where}: unknown implementation {name!r}")
    return spec


def _describe(content: Any) -> str:
    if not isinstance(content, dict):
        return f"a {type(content).__name__}"
    if content and all(isinstance(value, Tensor) for value in content.values()):
        return f"a bare state dict of {len(content)} tensors"
    return "a dict of something else"


def _require_counts(content: dict[str, Any], spec: TrainingSpec, where: str) -> None:
    processes = spec.process_count
    local = IMPLEMENTATIONS[spec.implementation].averages_parameters
    for name, allowed in (
        ("optimizers", {processes if local else 1}),
        ("random_states", {processes}),
        ("shares", {0, processes}),
    ):
        if len(content[name]) not in allowed:
            raise UsageError(
                f"{where}: it holds {len(content[name])} {name} of a training of {processes} "
                f"processes; expected {' or '.join(map(str, sorted(allowed)))}"
            )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_plain_dict(value: Any) -> bool:
    return type(value) is dict and all(type(key) is str for key in value)


def _is_state_dict(value: Any) -> bool:
    return _is_plain_dict(value) and all(isinstance(part, Tensor) for part in value.values())


def _are_dicts(value: Any) -> bool:
    return type(value) is list and all(map(_is_plain_dict, value))


def _are_shares(value: Any) -> bool:
    return type(value) is list and all(
        type(share) is float and 0 < share < math.inf for share in value
    )


_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "epoch": ("a whole number of at least 0", _is_count),
    "window": ("a whole number of at least 0", _is_count),
    "step": ("a whole number of at least 0", _is_count),
    "model": ("tensors by name", _is_state_dict),
    "optimizers": ("a list of state dicts", _are_dicts),
    "scaler": ("a state dict or None", lambda value: value is None or _is_plain_dict(value)),
    "random_states": ("a list of states", _are_dicts),
    "shares": ("a list of numbers above 0", _are_shares),
    "samples_sha256": ("a hash", lambda value: type(value) is str),
    "best_metric": ("a number or None", lambda value: value is None or type(value) is float),
    "progress": ("numbers by name", _is_plain_dict),
}
"""Type of each part, in words and as a test."""
