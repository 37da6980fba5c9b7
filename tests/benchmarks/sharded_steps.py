"""Steps in shares against torch's ways to make an AdamW step, on two CPU ranks at small batches.

`python -m tests.benchmarks.sharded_steps mlp gpt` measures these architectures only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks import (
    _hook_then_optimizer,
    _OptimizerHookState,
)
from torch.distributed.optim import ZeroRedundancyOptimizer, as_functional_optim

import dpbench
from dpbench import architecture
from dpbench.data import datasets
from dpbench.measure.implementations import Plain, wrap
from dpbench.measure.step import Trainer
from dpbench.rendezvous.process_group import process_group
from tests.benchmarks.figure import Figure, Ratio
from tests.benchmarks.implementations import at_least, block_seconds, geometric_mean, overall
from tests.benchmarks.sides import Load, Seconds, Step, take_turns
from tests.builders import trial_spec

LOADS = tuple(
    Load(architecture=architecture, batch=batch, steps=steps, rounds=rounds)
    for architecture, batch, steps, rounds in (
        ("mlp", 32, 8, 12),
        ("mnist_cnn", 32, 8, 12),
        ("gpt", 4, 2, 12),
        ("bert", 4, 1, 12),
        ("tabular", 32, 2, 12),
    )
)
OURS = {"ddp-sharded/gloo": 1.0, "ddp-sharded/shm": 1.3}
"""The promised geometric mean over torch's best on gloo; of each load alone it is 1."""
BOUND = "half a step, nothing sent"
RATE = 1e-4
LARGEST_SHARE = 0.55
"""Of the optimizer's state on each of two ranks."""
_Torch = nn.parallel.DistributedDataParallel
Trained = tuple[nn.Module, torch.optim.Optimizer]


def run(architectures: Sequence[str] = ()) -> Iterator[Figure]:
    over_best: dict[str, list[Ratio]] = {side: [] for side in OURS}
    for load in LOADS:
        if architectures and load.architecture not in architectures:
            continue
        seconds = block_seconds(two_ranks, load, ranks=2)
        share = max(seconds.pop("share of the state"))
        peers = [name for name in seconds if name not in (*OURS, "ddp/gloo", BOUND)]
        best = min(peers, key=lambda name: geometric_mean(seconds[name]))
        for side in (*OURS, "ddp/gloo", BOUND):
            ratio = Ratio.of(seconds[best], seconds[side])
            if side in OURS:
                over_best[side].append(ratio)
            target = 1.0 if side in OURS else None
            yield at_least(target, ratio, f"images/s of {side} ÷ {best}, AdamW ({load})")
        for peer in (name for name in peers if name != best):
            ratio = Ratio.of(seconds[peer], seconds["ddp-sharded/gloo"])
            yield at_least(None, ratio, f"images/s of ddp-sharded/gloo ÷ {peer}, AdamW ({load})")
        yield Figure(
            name=f"optimizer state of a rank of ddp-sharded ÷ all of it ({load})",
            value=f"{share:.3f}",
            target=f"at most {LARGEST_SHARE}",
            met=share <= LARGEST_SHARE,
        )
    for side, target in OURS.items():
        name = f"images/s of {side} ÷ torch's best on gloo, AdamW, geometric mean"
        yield at_least(target, overall(over_best[side]), name)


def two_ranks(load: Load, rank: int) -> Seconds:
    """Every way to make a step, in turn; and the share of the state that a rank holds."""
    torch.set_num_threads(1)
    with process_group("gloo", device="cpu"):
        sharded: list[dpbench.ShardedOptimizer] = []
        shm = dist.new_group(backend="shm")

        def in_shares(module: nn.Module, group: dist.ProcessGroup | None = None) -> Trained:
            model = dpbench.DistributedDataParallel(module, process_group=group)
            sharded.append(dpbench.ShardedOptimizer(model, adamw(module)))
            return model, sharded[-1]

        makes: dict[str, Callable[[nn.Module], Trained]] = {
            "ddp-sharded/gloo": in_shares,
            "ddp-sharded/shm": lambda module: in_shares(module, shm),
            "ddp/gloo": lambda module: (dpbench.DistributedDataParallel(module), adamw(module)),
            "torch-ddp": lambda module: (_Torch(module), adamw(module)),
            "ZeroRedundancyOptimizer": _zero,
            "fsdp2": _fsdp2,
            "optimizer in backward": _in_backward,
            BOUND: lambda module: (module, _HalfStep(module)),
        }
        seconds = take_turns(
            {name: _training(load, make, rank) for name, make in makes.items()},
            load.steps,
            load.rounds,
        )
        return {**seconds, "share of the state": [_share_of_state(sharded[0])]}


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=RATE, fused=True)


class _HalfStep(torch.optim.AdamW):
    """Steps one flat tensor with half of the parameters' elements, in their place."""

    def __init__(self, module: nn.Module) -> None:
        self._parameters = list(module.parameters())
        half = nn.Parameter(torch.zeros(sum(p.numel() for p in self._parameters) // 2))
        half.grad = torch.zeros_like(half)
        super().__init__([half], lr=RATE, fused=True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self._parameters:
            parameter.grad = None


def _zero(module: nn.Module) -> Trained:
    zero = ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, lr=RATE, fused=True)
    return _Torch(module), zero


def _fsdp2(module: nn.Module) -> Trained:
    trial = trial_spec(implementation="fsdp2")
    return wrap(module, trial, dist.get_rank()).module, adamw(module)  # type: ignore[attr-defined]


def _in_backward(module: nn.Module) -> Trained:
    """Each parameter is stepped as soon as its bucket is reduced, in torch's own way on the CPU:
    `_apply_optimizer_in_backward` under DistributedDataParallel needs a GPU."""
    model = _Torch(module)
    functional = as_functional_optim(torch.optim.AdamW, lr=RATE)
    state = _OptimizerHookState(functional)
    model.register_comm_hook(None, _hook_then_optimizer(allreduce_hook, state))
    return model, torch.optim.SGD([nn.Parameter(torch.zeros(1))])


def _training(load: Load, make: Callable[[nn.Module], Trained], rank: int) -> Step:
    """A step on this process's part of a batch, the same at every step."""
    loaded = architecture.load(load.architecture)
    data = datasets.load("synthetic", None, loaded, seed=rank, samples=load.batch)
    torch.manual_seed(0)
    model, optimizer = make(loaded.build_model())
    trainer = Trainer(Plain(model), optimizer, loaded, data, accumulation_steps=1)
    batch = [torch.arange(load.batch)]
    return lambda: trainer.step(batch)


def _share_of_state(optimizer: dpbench.ShardedOptimizer) -> float:
    """Elements of state that this rank holds, of those of all ranks."""
    everything = sum(
        value.numel()
        for state in optimizer.state_dict()["state"].values()
        for value in state.values()
    )
    held = sum(
        value.numel()
        for share in optimizer._shares
        for state in share.states().values()
        for value in state.values()
    )
    return held / everything


if __name__ == "__main__":
    for figure in run(sys.argv[1:]):
        print(f"{figure.name}: {figure.value}; promised {figure.target}", flush=True)
