"""The verification of gradients that every measured speed needs.

The implementation and one process take the same steps from the same seed in float64 with SGD. The
process takes the shards of all ranks in turn and averages their gradients with the weights that the
implementation promises: the mean of a shard of n samples out of N counts n/N. After every step each
gradient must agree. Float64 leaves only rounding between them, so a wrong scale, a lost shard or a
late reduction cannot hide; SGD carries an error into the parameters, where Adam would rescale it
away.

For a loss that is a mean over samples, that average is also the gradient of the full batch. The
verification checks this too, and the record says where it does not hold.

An implementation that averages parameters instead of gradients is compared with one copy per rank,
averaged as often, up to the gradients of the step after an average. Sharded gradients are gathered
for the comparison. A communication hook is left out, as it loses precision by design, and the
verification covers the implementation around it.

A model so large that its copies in float64 would fill the memory is compared in float32, with a
wider tolerance. The record says so.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from operator import itemgetter

import torch

from dpbench.architecture import Architecture
from dpbench.architecture.user_errors import seeded
from dpbench.data.batch import call
from dpbench.data.datasets import Dataset, UserDataset
from dpbench.measure.device import full_float32
from dpbench.measure.implementations import wrap
from dpbench.measure.implementations.model import full_tensor
from dpbench.measure.rank_model import RankModel, compile_module
from dpbench.measure.step import BenchmarkStepper
from dpbench.parallel.agreement import tensors_sha256
from dpbench.parallel.torch_private import broadcast_coalesced
from dpbench.records.trial import Verification
from dpbench.rendezvous.process_group import RankGroup
from dpbench.specs import Configuration

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-3}
"""Largest relative errors that pass. Rounding leaves 1e-15 in float64 and up to 1e-5 in float32; a
wrong scale, a lost shard or a late reduction are above 1e-2 in both."""
MAX_DOUBLE_PARAMETERS = 2**26
"""Most parameters compared in float64. Every rank holds the model and its reference with gradients:
2 GiB for this many."""
MIN_VERIFIED_STEPS = 2
VANISHING = 1e-4
"""Gradients below this share of the model's largest are compared with that share instead: a
gradient that is tiny beside those of the other parameters may be pure rounding."""
MAX_SHARD = 2
"""Samples per replica: enough for every layer to see different data, too few to cost time."""

GradientList = list[torch.Tensor | None]


def verify(
    settings: Configuration,
    architecture: Architecture,
    dataset: Dataset | UserDataset,
    rank: int,
    ranks: RankGroup,
) -> Verification:
    """Compare the gradients of all ranks with one process; a collective."""
    small = _shrunk(settings)
    device = torch.device(settings.devices[rank])
    torch.manual_seed(settings.workload.seed)
    module = architecture.build_model()
    # Wrappers take rank 0's values. The reference must too, as a factory may ignore the seed.
    if ranks.control is not None:
        broadcast_coalesced([*module.parameters(), *module.buffers()], ranks.control)
    large = sum(parameter.numel() for parameter in module.parameters()) > MAX_DOUBLE_PARAMETERS
    dtype = torch.float32 if large else torch.float64
    if large:
        full_float32()
    module = module.to(device, dtype).eval()  # dropout has no reference
    steps, per_step = max(MIN_VERIFIED_STEPS, settings.sync_every + 1), small.effective_batch_size
    first_samples = torch.arange(steps * per_step) % len(dataset)
    with seeded(settings.workload.seed):  # items may draw random numbers
        inputs, targets = dataset.select(first_samples)
    samples = Dataset(inputs=inputs, targets=targets).to(device, dtype)
    reference = OneProcessReference(module, small, rank, architecture, samples)
    is_sample_mean = None
    if settings.traits.communicates:
        is_sample_mean = _is_sample_mean(reference.module, architecture, samples, small)
    parallel = wrap(compile_module(module, settings.workload), small, rank)
    optimizer = parallel.optimizer(_sgd(module, small))
    model = RankModel(module=module, parallel=parallel, optimizer=optimizer, loss=architecture.loss)
    stepper = BenchmarkStepper(model, samples.select, small.averaging_weight(rank))
    worst, worst_parameter = 0.0, None
    for indices in torch.arange(steps * per_step, device=device).chunk(steps):
        batches = indices.chunk(small.accumulate)  # global, one for each micro-step
        own = small.sample_range(rank)
        stepper.step([batch[own.start : own.stop] for batch in batches])
        reference.step(batches)
        expected = [parameter.grad for parameter in reference.module.parameters()]
        errors = _errors(parallel.full_gradients(), expected)
        for (name, _), error in zip(module.named_parameters(), errors, strict=True):
            if error > worst:
                worst, worst_parameter = error, name
    worst, worst_parameter = max(ranks.gather((worst, worst_parameter)), key=itemgetter(0))
    return Verification(
        passed=worst <= TOLERANCES[dtype],
        max_relative_error=worst,
        tolerance=TOLERANCES[dtype],
        tensors_compared=steps * sum(1 for _ in module.parameters()),
        worst_parameter=worst_parameter,
        dtype=str(dtype).removeprefix("torch."),
        is_sample_mean=is_sample_mean,
    )


def _shrunk(settings: Configuration) -> Configuration:
    """The settings with a few samples per replica, uneven if its shards are uneven.

    A communication hook is left out, as it loses precision by design. How much it loses is not
    checked; the loss curve shows it.
    """
    sizes = settings.replica_batch_sizes
    larger = sum(size > min(sizes) for size in sizes)
    batch_size = min(*sizes, MAX_SHARD) * settings.group_size + larger
    return replace(settings, comm_hook="none", scaling="strong", batch_size=batch_size)


class OneProcessReference:
    """One process that takes the steps of the whole group with plain modules.

    Where ranks average gradients, one module takes the shards of all of them. Where they average
    parameters, a copy for each rank takes its shard, and the copies are averaged as often.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        settings: Configuration,
        rank: int,
        architecture: Architecture,
        samples: Dataset,
    ) -> None:
        traits, ranks = settings.traits, range(settings.process_count)
        self._settings, self._loss = settings, architecture.loss
        self._samples, self._steps = samples, 0
        # The shards that each copy takes, with the weights of their mean losses.
        shards = [
            (settings.sample_range(other), settings.averaging_weight(other))
            for other in (ranks if traits.communicates else [rank])
        ]
        self._shards = [[shard] for shard in shards] if traits.averages_parameters else [shards]
        self._copies = [copy.deepcopy(module) for _ in self._shards]
        self.module = self._copies[rank if len(self._copies) > 1 else 0]
        """The module that has the gradients of this rank."""

    def step(self, batches: Sequence[torch.Tensor]) -> None:
        """Take a step on the global batch of each micro-step."""
        self._steps += 1
        for module, shards in zip(self._copies, self._shards, strict=True):
            module.zero_grad()
            for shard, weight in shards:
                for batch in batches:
                    inputs, targets = self._samples.select(batch[shard.start : shard.stop])
                    loss = self._loss(call(module, inputs), targets)
                    (loss * (weight / len(shards) / len(batches))).backward()  # type: ignore[no-untyped-call]
            _sgd(module, self._settings).step()  # it has no state
        if len(self._copies) > 1 and self._steps % self._settings.sync_every == 0:
            with torch.no_grad():
                for same in zip(*(module.parameters() for module in self._copies), strict=True):
                    mean = torch.stack(same).mean(dim=0)
                    for parameter in same:
                        parameter.copy_(mean)


def _sgd(module: torch.nn.Module, settings: Configuration) -> torch.optim.Optimizer:
    """The optimizer of the verification, which carries a wrong gradient into the parameters."""
    return torch.optim.SGD(module.parameters(), lr=settings.scaled_lr)


def _is_sample_mean(
    module: torch.nn.Module, architecture: Architecture, samples: Dataset, settings: Configuration
) -> bool | None:
    """Whether the weighted mean of the shards' gradients is the gradient of the full batch; None
    for a model that is random in eval mode, whose two passes differ."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def loss(shard: range) -> torch.Tensor:
        inputs, targets = samples.select(slice(shard.start, shard.stop))
        return architecture.loss(call(module, inputs), targets)

    def gradients(loss: torch.Tensor) -> GradientList:
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))

    every = range(settings.global_batch_size)
    if not torch.allclose(loss(every), loss(every), equal_nan=True):
        return None
    shards = [settings.sample_range(rank) for rank in range(settings.process_count)]
    weighted = [loss(shard) * (len(shard) / len(every)) for shard in shards]
    errors = _errors(gradients(torch.stack(weighted).sum()), gradients(loss(every)))
    return max(errors, default=0.0) <= TOLERANCES[parameters[0].dtype]


def _errors(ours: GradientList, theirs: GradientList) -> list[float]:
    """The relative error of each gradient: max|g - g_ref| ÷ max|g_ref|."""
    sizes = [_largest(gradient) for gradient in theirs if gradient is not None]
    floor = VANISHING * max(filter(isfinite, sizes), default=0.0)
    errors = []
    for gradient, expected in zip(ours, theirs, strict=True):
        if gradient is None or expected is None:
            errors.append(0.0 if gradient is expected else float("inf"))
            continue
        if not isfinite(_largest(expected)):
            # Both sides overflowed, which the losses tell; one alone is a wrong gradient.
            errors.append(float("inf") if isfinite(_largest(gradient)) else 0.0)
            continue
        difference = _largest(gradient - expected)
        scale = max(_largest(expected), floor)
        error = difference / scale if scale > 0 else difference
        errors.append(error if error == error else float("inf"))  # a NaN compares with nothing
    return errors


def _largest(tensor: torch.Tensor) -> float:
    dense = tensor.to_dense() if tensor.is_sparse else tensor
    return float(dense.abs().max()) if dense.numel() else 0.0


def checksum(module: torch.nn.Module) -> str:
    """A hash of the parameters of a module, whole ones if ranks hold shards; then a collective."""
    return tensors_sha256((name, full_tensor(p.detach())) for name, p in module.named_parameters())
