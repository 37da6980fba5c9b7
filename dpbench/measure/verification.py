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
for the comparison. A communication hook is left out, as it loses precision by design: the loss
curve shows how much.
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
MAX_SYNC_EVERY = 4
"""Most steps between two averages of parameters: a longer interval proves the same code."""
VANISHING = 1e-4
"""Gradients below this share of the model's largest are compared with that share instead: a
gradient that is tiny beside those of the other parameters may be pure rounding."""
MAX_SHARD = 2
"""Samples per replica: enough for every layer to see different data, too few to cost time."""

Gradients = Sequence[torch.Tensor | None]


def verify(
    configuration: Configuration,
    architecture: Architecture,
    dataset: Dataset | UserDataset,
    rank: int,
    ranks: RankGroup,
) -> Verification:
    """Compare the gradients of all ranks with one process; a collective."""
    small = _shrunk(configuration)
    device = torch.device(configuration.devices[rank])
    torch.manual_seed(configuration.workload.seed)
    module = architecture.build_model().eval()  # dropout has no reference
    # Wrappers take rank 0's values. The reference must too, as a factory may ignore the seed.
    if ranks.control is not None:
        broadcast_coalesced([*module.parameters(), *module.buffers()], ranks.control)
    steps, per_step = max(MIN_VERIFIED_STEPS, small.sync_every + 1), small.effective_batch_size
    first_samples = torch.arange(steps * per_step) % len(dataset)
    with seeded(configuration.workload.seed):  # items may draw random numbers
        inputs, targets = dataset.select(first_samples)
    samples = Dataset(inputs=inputs, targets=targets)
    few = samples.part(0, MAX_SHARD).to(device, torch.float64)
    dtype = _comparable_dtype(module.to(device), architecture, few, ranks)
    if dtype == torch.float32:
        full_float32()
    module, samples = module.to(dtype), samples.to(device, dtype)
    reference = OneProcessReference(module, small, rank, architecture, samples)
    is_sample_mean = reference.is_sample_mean()
    parallel = wrap(compile_module(module, configuration.workload), small, rank)
    optimizer = parallel.optimizer(torch.optim.SGD(module.parameters(), lr=small.scaled_lr))
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


def _comparable_dtype(
    module: torch.nn.Module, architecture: Architecture, samples: Dataset, ranks: RankGroup
) -> torch.dtype:
    """Float64, or float32 for a model that is too large or casts to it itself, which fails on
    `samples` in float64; a collective."""
    if sum(parameter.numel() for parameter in module.parameters()) > MAX_DOUBLE_PARAMETERS:
        return torch.float32
    failed = False
    try:
        architecture.loss(call(module.double(), samples.inputs), samples.targets)
    except RuntimeError:  # a layer in float64 refuses an input in float32
        failed = True
    return torch.float32 if ranks.max(failed) else torch.float64


def _shrunk(configuration: Configuration) -> Configuration:
    """The configuration without a communication hook, and with a few samples per replica, uneven if
    its shards are, and a few steps between averages of parameters."""
    sizes = configuration.replica_batch_sizes
    larger = sum(size > min(sizes) for size in sizes)
    batch_size = min(*sizes, MAX_SHARD) * configuration.group_size + larger
    every = min(configuration.sync_every, MAX_SYNC_EVERY)
    return replace(
        configuration, comm_hook="none", scaling="strong", batch_size=batch_size, sync_every=every
    )


class OneProcessReference:
    """One process that takes the steps of the whole group with plain modules.

    Where ranks average gradients, one module takes the shards of all of them. Where they average
    parameters, a copy for each rank takes its shard, and the copies are averaged as often.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        configuration: Configuration,
        rank: int,
        architecture: Architecture,
        samples: Dataset,
    ) -> None:
        self._configuration, self._samples = configuration, samples
        self._loss, self._steps = architecture.loss, 0
        traits, ranks = configuration.traits, range(configuration.process_count)
        # The shards that each copy takes, with the weights of their mean losses.
        shards = [
            (configuration.sample_range(other), configuration.averaging_weight(other))
            for other in (ranks if traits.communicates else [rank])
        ]
        self._shards = [[shard] for shard in shards] if traits.averages_parameters else [shards]
        self._copies = [copy.deepcopy(module) for _ in self._shards]
        self.module = self._copies[rank if len(self._copies) > 1 else 0]
        """The module that has the gradients of this rank."""

    def step(self, batches: Sequence[torch.Tensor]) -> None:
        """Take a step on the global batch of each micro-step."""
        self._steps += 1
        rate, sync_every = self._configuration.scaled_lr, self._configuration.sync_every
        for module, shards in zip(self._copies, self._shards, strict=True):
            module.zero_grad()
            for shard, weight in shards:
                for batch in batches:
                    loss = self._mean_loss(module, batch[shard.start : shard.stop])
                    # A loss in float32 rounds its factor, so this is the one of BenchmarkStepper.
                    # The mean over shards is taken of the gradients, as by the ranks.
                    (loss * (weight / len(batches))).backward()  # type: ignore[no-untyped-call]
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.grad /= len(shards)
            torch.optim.SGD(module.parameters(), lr=rate).step()  # it has no state
        if len(self._copies) > 1 and self._steps % sync_every == 0:
            with torch.no_grad():
                for same in zip(*(module.parameters() for module in self._copies), strict=True):
                    mean = torch.stack(same).mean(dim=0)
                    for parameter in same:
                        parameter.copy_(mean)

    def is_sample_mean(self) -> bool | None:
        """Whether the weighted mean of the shards' gradients is the gradient of the full batch;
        None if ranks average nothing, and for a model that is random in eval mode, whose passes
        differ."""
        configuration, module = self._configuration, self.module
        parameters = [each for each in module.parameters() if each.requires_grad]

        def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
            found = torch.autograd.grad(loss, parameters, materialize_grads=True)
            return [gradient.to_dense() for gradient in found]

        count = configuration.global_batch_size
        full, again = (self._mean_loss(module, slice(count)) for _ in range(2))
        if not configuration.traits.communicates or not full.allclose(again, equal_nan=True):
            return None
        mean = [torch.zeros_like(parameter) for parameter in parameters]
        for shard in map(configuration.sample_range, range(configuration.process_count)):
            loss = self._mean_loss(module, slice(shard.start, shard.stop))
            for weighted, gradient in zip(mean, gradients(loss), strict=True):
                weighted.add_(gradient, alpha=len(shard) / count)
        is_double = {parameters[0].dtype, full.dtype} == {torch.float64}
        tolerance = TOLERANCES[torch.float64 if is_double else torch.float32]
        return max(_errors(mean, gradients(full)), default=0.0) <= tolerance

    def _mean_loss(self, module: torch.nn.Module, indices: torch.Tensor | slice) -> torch.Tensor:
        inputs, targets = self._samples.select(indices)
        return self._loss(call(module, inputs), targets)


def _errors(ours: Gradients, theirs: Gradients) -> list[float]:
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
    return float(tensor.to_dense().abs().max()) if tensor.numel() else 0.0


def checksum(module: torch.nn.Module) -> str:
    """A hash of the parameters of a module, whole ones if ranks hold shards; then a collective."""
    return tensors_sha256((name, full_tensor(p.detach())) for name, p in module.named_parameters())
