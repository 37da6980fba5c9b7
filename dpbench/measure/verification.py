"""The proof of gradients that every measured speed needs.

The implementation and a plain copy take the same steps from the same seed in float64 with SGD, on
the same global batch: the implementation sharded over its replicas, the copy whole in one process.
After every step each gradient must agree. Float64 leaves only rounding between them, so a wrong
scale, a lost shard or a late reduction cannot hide; SGD carries an error into the parameters,
where Adam would rescale it away. An implementation that averages parameters instead of gradients is
compared with one copy per rank, averaged as often, up to the gradients of the step after an
average. Sharded gradients are gathered for the comparison, and where steps are sharded the
parameters after the last of them are compared too. A communication hook stays if it declares itself
lossless; one that rounds or compresses is left out, and the proof covers the implementation around
it.

A model so large that four copies in float64 would fill the memory is compared in float32, with a
wider tolerance, and so is an implementation that reduces nothing wider. The record says so.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Protocol

import torch

from dpbench.architecture import Architecture
from dpbench.data.datasets import Dataset
from dpbench.data.items import Source
from dpbench.measure.implementations import ParallelModel, Plain, averaging_weight, wrap
from dpbench.measure.implementations.comm_hooks import is_lossless
from dpbench.measure.own_step import expect_gradients, trainer_of
from dpbench.measure.preparation import prepare
from dpbench.measure.rank_group import RankGroup
from dpbench.measure.step import Trainer
from dpbench.records.trial import Verification
from dpbench.specs import TrialSpec
from dpbench.specs.traits import IMPLEMENTATIONS

MakeTrainer = Callable[[ParallelModel, torch.nn.Module], Trainer]


class Reference(Protocol):
    """Plain modules that make the steps of a whole group."""

    module: torch.nn.Module
    """The module whose gradients this rank must have."""

    def step(self, batches: Sequence[torch.Tensor]) -> None:
        """Make a step on the global batch of each micro-step."""
        ...


def reference(
    module: torch.nn.Module, trial: TrialSpec, rank: int, trainer: MakeTrainer
) -> Reference:
    """The reference for the trial's implementation; it trains copies of `module`, which stays
    unchanged."""
    traits = IMPLEMENTATIONS[trial.implementation]
    if traits.averages_parameters:
        return _LocalReplicas(module, trial, rank, trainer)
    shard = (0, trial.global_batch_size) if traits.communicates else trial.process_shard(rank)
    return _OneModule(module, shard, trainer)


class _OneModule:
    """One copy on the whole global batch, or on one rank's shard of it."""

    def __init__(
        self, module: torch.nn.Module, shard: tuple[int, int], trainer: MakeTrainer
    ) -> None:
        self.module = copy.deepcopy(module)
        self._shard = shard
        self._trainer = trainer(Plain(self.module), self.module)

    def step(self, batches: Sequence[torch.Tensor]) -> None:
        self._trainer.step([batch.narrow(0, *self._shard) for batch in batches])


class _LocalReplicas:
    """A copy for each rank on its own shard; every few steps their parameters are averaged."""

    def __init__(
        self, module: torch.nn.Module, trial: TrialSpec, rank: int, trainer: MakeTrainer
    ) -> None:
        self._trial = trial
        self._replicas = [copy.deepcopy(module) for _ in range(trial.group_size)]
        self.module = self._replicas[rank]
        self._trainers = [
            trainer(Plain(replica, averaging_weight(trial, number)), replica)
            for number, replica in enumerate(self._replicas)
        ]

    def step(self, batches: Sequence[torch.Tensor]) -> None:
        for number, trainer in enumerate(self._trainers):
            shard = self._trial.process_shard(number)
            trainer.step([batch.narrow(0, *shard) for batch in batches])
        if trainer.steps % self._trial.sync_every == 0:
            self._average()

    @torch.no_grad()
    def _average(self) -> None:
        for copies in zip(*(replica.parameters() for replica in self._replicas), strict=True):
            mean = torch.stack([parameter.detach() for parameter in copies]).mean(dim=0)
            for parameter in copies:
                parameter.copy_(mean)


TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-3}
"""Largest relative errors that pass. Rounding leaves 1e-15 in float64 and up to 1e-5 in float32; a
wrong scale, a lost shard or a late reduction are above 1e-2 in both."""
MOST_IN_DOUBLE = 2**26
"""Most parameters compared in float64. Every rank holds the model and its reference, both with
gradients: 2 GiB for this many."""
LEAST_STEPS = 2
VANISHING = 1e-4
"""Gradients below this share of the model's largest are compared with that share instead."""
LARGEST_SHARD = 2
"""Samples per replica: enough for every layer to see different data, too few to cost time."""


@dataclass(frozen=True, slots=True)
class _Deviation:
    error: float
    parameter: str | None


def verify(
    trial: TrialSpec, architecture: Architecture, dataset: Source, rank: int, ranks: RankGroup
) -> Verification:
    """Compare this rank's gradients with one process; `passed` is the result of all ranks."""
    small = _shrunk(trial)
    device = torch.device(trial.devices[rank])
    torch.manual_seed(trial.workload.seed)
    module = architecture.build_model().to(device).eval()  # dropout has no reference
    dtype = _dtype(module)
    module = module.to(dtype)
    steps = max(LEAST_STEPS, trial.sync_every + 1)
    samples = _samples(dataset, steps * small.effective_batch_size, device, dtype)
    make_trainer = trainer_of(trial.workload)

    def trainer(model: ParallelModel, trained: torch.nn.Module) -> Trainer:
        sgd = model.optimizer(torch.optim.SGD(trained.parameters(), lr=trial.learning_rate))
        return make_trainer(model, sgd, architecture, samples, trial.accumulation_steps)

    plain = reference(module, small, rank, trainer)
    prepare(module, trial.workload)
    model = wrap(module, small, rank)
    sharded = trainer(model, module)
    worst = _Deviation(0.0, None)
    for step in range(steps):
        batches = list(_global_batches(small, step, device))
        sharded.step([batch.narrow(0, *small.process_shard(rank)) for batch in batches])
        plain.step(batches)
        expect_gradients(plain.module, f"step {trial.workload.step!r}")
        model.show_gradients()
        worst = max(worst, _deviation(module, plain.module), key=attrgetter("error"))
    tensors = steps * sum(1 for _ in module.parameters())
    if IMPLEMENTATIONS[trial.implementation].shards_optimizer:
        # Ranks send each other parameters: those of the last step show in no gradient.
        worst = max(worst, _distance(module, plain.module), key=attrgetter("error"))
        tensors += sum(1 for _ in module.parameters())
    return Verification(
        passed=ranks.largest(worst.error) <= TOLERANCES[dtype],
        max_relative_error=worst.error,
        tolerance=TOLERANCES[dtype],
        tensors_compared=tensors,
        worst_parameter=worst.parameter,
        dtype=str(dtype).removeprefix("torch."),
    )


def _dtype(module: torch.nn.Module) -> torch.dtype:
    large = sum(parameter.numel() for parameter in module.parameters()) > MOST_IN_DOUBLE
    return torch.float32 if large else torch.float64


def _shrunk(trial: TrialSpec) -> TrialSpec:
    """The trial with a few samples per replica, uneven if its shards are uneven.

    A communication hook that loses precision is left out. How much it loses is not checked; the
    loss curve shows it.
    """
    if not is_lossless(trial.comm_hook):
        trial = replace(trial, comm_hook="none")
    sizes = trial.replica_batch_sizes
    shard = min(*sizes, LARGEST_SHARD)
    if trial.scaling == "weak":
        return replace(trial, batch_size=shard)
    larger = sum(size > min(sizes) for size in sizes)
    return replace(trial, batch_size=shard * trial.group_size + larger)


def _samples(dataset: Source, wanted: int, device: torch.device, dtype: torch.dtype) -> Dataset:
    """The first samples of the dataset, with floating-point ones converted to `dtype`."""
    inputs, targets = dataset.take(torch.arange(wanted, device=dataset.device) % len(dataset))

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)

    return Dataset(inputs=inputs, targets=targets).map(convert)


def _global_batches(trial: TrialSpec, step: int, device: torch.device) -> Iterable[torch.Tensor]:
    """The sample indices of each micro-step's global batch."""
    first = step * trial.effective_batch_size
    indices = torch.arange(first, first + trial.effective_batch_size, device=device)
    return torch.chunk(indices, trial.accumulation_steps)


def _deviation(module: torch.nn.Module, reference: torch.nn.Module) -> _Deviation:
    """The largest relative error over the parameters, and the parameter that has it.

    The error is max|g - g_ref| ÷ max|g_ref|; but a gradient that is tiny beside those of the other
    parameters may be pure rounding, and is compared with a small share of the largest one.
    """
    theirs = [parameter.grad for parameter in reference.parameters()]
    largest = max((_largest(gradient) for gradient in theirs if gradient is not None), default=0.0)
    deviations = [
        _Deviation(_relative_error(_gradient(ours), gradient, floor=VANISHING * largest), name)
        for (name, ours), gradient in zip(module.named_parameters(), theirs, strict=True)
    ]
    return max(deviations, key=lambda deviation: deviation.error)


def _distance(module: torch.nn.Module, reference: torch.nn.Module) -> _Deviation:
    """The largest relative error of the parameters themselves."""
    deviations = [
        _Deviation(_relative_error(ours.detach(), theirs.detach(), floor=0.0), name)
        for (name, ours), theirs in zip(
            module.named_parameters(), reference.parameters(), strict=True
        )
    ]
    return max(deviations, key=attrgetter("error"))


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """The whole gradient, also if this rank holds a shard: all ranks go through the parameters
    together."""
    return None if parameter.grad is None else whole(parameter.grad)


def _relative_error(
    gradient: torch.Tensor | None, reference: torch.Tensor | None, *, floor: float
) -> float:
    if gradient is None or reference is None:
        return 0.0 if gradient is reference else float("inf")
    difference = _largest(gradient - reference)
    scale = max(_largest(reference), floor)
    error = difference / scale if scale > 0 else difference
    return error if error == error else float("inf")  # a NaN compares with nothing


def _largest(tensor: torch.Tensor) -> float:
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    return float(dense.abs().max()) if dense.numel() else 0.0


DIGEST_BYTES = 8


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself; if ranks hold shards of it (a DTensor), the whole tensor.

    That is a collective: every rank asks for the same tensors in the same order.
    """
    gather = getattr(tensor, "full_tensor", None)  # the class takes a second to import
    return tensor if gather is None else gather()


def tensors_checksum(tensors: Iterable[torch.Tensor]) -> str:
    """A hash of the bytes of all tensors in order; equal only if every bit is.

    If ranks hold shards, the hash is that of the whole tensors, and this is a collective.
    """
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for tensor in tensors:
        flat = whole(tensor.detach()).cpu().contiguous().flatten()
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
