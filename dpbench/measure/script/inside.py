"""The program of a script's rank: it watches the script from inside, and runs it.

    python inside.py PLAN train.py --epochs 1
    python inside.py PLAN -m package.train

PLAN is JSON; see `dpbench.launch.script`. Three public places of torch are patched: forward of
DistributedDataParallel, the iterator of DataLoader, and the hook after an optimizer's step. No code
of the script runs after the last measured step: it may save, evaluate, or wait for others.
"""

from __future__ import annotations

import copy
import faulthandler
import functools
import json
import os
import resource
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

if __name__ == "__main__":  # in place of this folder, whose modules have common names
    sys.path[0] = str(Path(__file__).parents[3])

import torch
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

from dpbench.measure.script.clock import Peers, Segment, StepClock

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integers of as many bytes as the numbers of a parameter."""
SHORTEST_TIME_SECONDS = 0.01
QUEUE_LIMIT = 64
"""Most steps in which a queue of batches is emptied."""


class ScriptFault(Exception):
    """What the script does cannot be measured; the message says what it should do."""


@dataclass
class Feed:
    """A DataLoader, and whether it feeds training steps."""

    batch: Any = None
    """The last one."""
    at_step: int = 0
    """Steps that had been taken when it came."""
    trains: bool = False
    """Whether it gave batches to two consecutive steps, as a loader for evaluation does not."""


class Batches:
    """An iterator of a DataLoader that the clock hears of."""

    def __init__(self, batches: Iterator[Any], feed: Feed, clock: StepClock) -> None:
        self._batches, self._feed, self._clock = batches, feed, clock

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        feed, clock = self._feed, self._clock
        if clock.mode == "cached" and feed.trains:
            clock.segment.repeated += 1
            return refreshed(feed.batch)
        started = perf_counter()
        try:
            batch = next(self._batches)
        except StopIteration:
            clock.interrupted = True
            raise
        clock.loader_seconds += perf_counter() - started
        if feed.trains:
            clock.samples += samples_in(batch)
        elif feed.batch is not None and clock.taken == feed.at_step + 1:
            feed.trains = clock.loads = True
        else:
            clock.interrupted = True
        feed.batch, feed.at_step = batch, clock.taken
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


def refreshed(batch: Any) -> Any:
    """The batch in new containers, since scripts take parts out of theirs; tensors are shared."""
    if torch.is_tensor(batch):
        return batch
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        return type(batch)(map(refreshed, batch))
    return copy.copy(batch)


def samples_in(batch: Any) -> int:
    """The first dimension of the first tensor; 1 if there is none."""
    if torch.is_tensor(batch):
        return batch.shape[0] if batch.ndim else 1
    if isinstance(batch, Mapping):
        batch = next(iter(batch.values()), None)
        return samples_in(batch) if batch is not None else 1
    if isinstance(batch, (list, tuple)) and batch:
        return samples_in(batch[0])
    return 1


class Watched:
    """What the patches have seen of the script, beside its steps."""

    def __init__(self) -> None:
        self.feeds: WeakKeyDictionary[Any, Feed] = WeakKeyDictionary()
        self.wrapper: DistributedDataParallel | None = None
        """The wrapper that computed last."""
        self.unused = False
        """Whether some parameter had no gradient after the warm-up."""

    def digests(self, optimizer: torch.optim.Optimizer | None) -> dict[str, int]:
        """A number for each whole parameter that the script trains, equal where all its bits are.
        Shards of parameters, which differ between ranks, are left out."""
        named: Any = []
        if self.wrapper is not None:
            named = self.wrapper.module.named_parameters()
            named = [(name, one) for name, one in named if one.requires_grad]
            self.unused = any(one.grad is None for _, one in named)
        elif optimizer is not None:
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            named = ((f"parameter {number}", one) for number, one in enumerate(parameters))
        found = {}
        for name, one in named:
            kind = BITS.get(one.element_size())
            if type(one) in (torch.Tensor, torch.nn.Parameter) and kind and one.ndim:
                bits = one.detach().contiguous().view(kind)
                found[name] = int(bits.sum(dtype=torch.int64))
        return found

    def sync_batch_norms(self) -> int:
        """Layers that communicate in every forward pass."""
        layers = self.wrapper.modules() if self.wrapper is not None else ()
        return sum(isinstance(layer, torch.nn.SyncBatchNorm) for layer in layers)

    def wrapper_facts(self) -> dict[str, Any]:
        """How the script wraps its model."""
        wrapper = self.wrapper
        return {
            "is_wrapped": wrapper is not None,
            "finds_unused": bool(wrapper and wrapper.find_unused_parameters),
            "has_unused": self.unused,
        }

    def loader_facts(self) -> dict[str, Any]:
        """The settings of the DataLoader that feeds the steps."""
        for loader, feed in self.feeds.items():
            if feed.trains:
                return {
                    "loader_workers": loader.num_workers,
                    "pins_memory": bool(loader.pin_memory),
                    "keeps_workers": bool(loader.persistent_workers),
                }
        return {}


def patch(clock: StepClock, watched: Watched) -> None:
    """Let the clock hear of the script's batches, forward passes and steps."""
    forward = DistributedDataParallel.forward
    iterate = DataLoader.__iter__

    @functools.wraps(forward)
    def ddp_forward(self: Any, *inputs: Any, **options: Any) -> Any:
        watched.wrapper = self
        wanted = self.require_backward_grad_sync
        if not wanted or not torch.is_grad_enabled():
            return forward(self, *inputs, **options)  # type: ignore[no-untyped-call]
        clock.synchronizes = True
        clock.reductions += 1
        if clock.mode != "no-sync":
            return forward(self, *inputs, **options)  # type: ignore[no-untyped-call]
        self.require_backward_grad_sync = False  # exactly what its no_sync() does
        try:
            return forward(self, *inputs, **options)  # type: ignore[no-untyped-call]
        finally:
            self.require_backward_grad_sync = wanted

    @functools.wraps(iterate)
    def loader_iter(self: Any) -> Iterator[Any]:
        feed = watched.feeds.setdefault(self, Feed())
        if clock.mode == "cached" and feed.trains:
            return Batches(iter(()), feed, clock)
        started = perf_counter()
        batches = iterate(self)
        clock.loader_seconds += perf_counter() - started
        if self.num_workers:
            queue = self.num_workers * (self.prefetch_factor or 2)
            clock.queued = min(max(clock.queued, queue), QUEUE_LIMIT)
        return Batches(batches, feed, clock)

    def spawn(*_: Any, **__: Any) -> NoReturn:
        raise ScriptFault(
            "the script starts its own ranks (torch.multiprocessing); dpbench starts them, as "
            "torchrun does: take RANK, LOCAL_RANK and WORLD_SIZE from the environment"
        )

    DistributedDataParallel.forward = ddp_forward  # type: ignore[method-assign]
    DataLoader.__iter__ = loader_iter  # type: ignore[method-assign,assignment]
    torch.multiprocessing.spawn = spawn  # type: ignore[attr-defined]
    torch.multiprocessing.start_processes = spawn  # type: ignore[attr-defined]
    register_optimizer_step_post_hook(lambda optimizer, _, __: clock.step_ended(optimizer))


class Program:
    """One run of the script, from its first line to the last measured step."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan, self.started = plan, perf_counter()
        self.watched = Watched()
        self.clock = StepClock(plan, Peers(**plan["peers"]), self.inspect, self.finish)

    def run(self, script: list[str]) -> None:
        """Run the script; this returns only if it takes too few steps or fails."""
        patch(self.clock, self.watched)
        status: object = 0
        try:
            if script[0] == "-m":
                sys.path[0], sys.argv = str(Path.cwd()), script[1:]
                runpy.run_module(script[1], run_name="__main__", alter_sys=True)
            else:
                sys.path[0], sys.argv = str(Path(script[0]).resolve().parent), script
                runpy.run_path(script[0], run_name="__main__")
        except SystemExit as leaving:
            status = leaving.code
        except ScriptFault as fault:
            self.leave(failure={"kind": "", "text": str(fault)})
        except BaseException as error:
            traceback.print_exc()
            self.leave(
                failure={
                    "kind": type(error).__name__,
                    "text": f"{next(iter(str(error).splitlines()), '')}{place_of(error)}",
                }
            )
        if self.clock.measured and status in (0, None):
            self.clock.script_ended()
        self.leave(failure={"kind": "", "text": self.too_short(status)})

    def inspect(self) -> dict[str, int]:
        """See `Watched.digests`."""
        return self.watched.digests(self.clock.optimizer)

    def too_short(self, status: object) -> str:
        """Why a script that has ended was not measured."""
        how = "ended" if status in (0, None) else f"called sys.exit({status!r})"
        if self.clock.taken == 0:
            return (
                f"the script {how} before an optimizer took a step in this process; expected "
                "training with a torch.optim optimizer"
            )
        return (
            f"the script {how} after {self.clock.taken} optimizer steps; it needs about "
            f"{self.plan['needs']}: let it train longer, or lower --warmup and --steps"
        )

    def finish(self, segments: list[Segment]) -> NoReturn:
        """Hand over what was measured, and end the process."""
        clock = self.clock
        cuda = clock.device.type == "cuda"
        as_is = [one for one in segments if one.mode == "as-is"]
        self.leave(
            measured={
                "pid": os.getpid(),
                "device": str(clock.device),
                "setup_seconds": (clock.first_step or self.started) - self.started,
                "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                "device_bytes": torch.cuda.max_memory_allocated(clock.device) if cuda else None,
                "reserved_bytes": torch.cuda.max_memory_reserved(clock.device) if cuda else None,
                "threads": torch.get_num_threads(),
                "sync_batch_norms": self.watched.sync_batch_norms(),
                "counts_samples": clock.counts_samples,
                "segments": [
                    {
                        "mode": one.mode,
                        "start": one.start,
                        "seconds": one.seconds,
                        "cpu_seconds": one.cpu_seconds,
                        "step_seconds": one.step_seconds,
                        "samples": one.samples,
                        "interrupted": sorted(one.interrupted),
                        "repeated": one.repeated,
                    }
                    for one in segments
                ],
                "facts": {
                    "steps": sum(len(one.samples) for one in as_is),
                    "world_size": torch.distributed.get_world_size()
                    if torch.distributed.is_initialized()
                    else 0,
                    "reducing_forwards": sum(sum(one.reductions) for one in as_is),
                    "loader_seconds": sum(sum(one.loader_seconds) for one in as_is),
                    "differing_parameter": clock.differing,
                    "gpu": str(torch.cuda.get_device_properties(clock.device).uuid)
                    if cuda
                    else None,
                    **self.watched.wrapper_facts(),
                    **self.watched.loader_facts(),
                },
            }
        )

    def leave(self, **result: Any) -> NoReturn:
        """Write the result, and end the process without any more code of the script."""
        if "measured" in result:
            self.clock.peers.exchange(over=True)  # others may still need this rank's connections
        path = Path(self.plan["result"])
        path.with_suffix(".part").write_text(json.dumps(result))
        path.with_suffix(".part").rename(path)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)


def place_of(error: BaseException) -> str:
    """The innermost line of the script's code that raised, in brackets."""
    try:
        from dpbench.architecture.user_errors import raised_at

        return raised_at(error)
    except ImportError:  # in another Python, without what dpbench needs
        return ""


if __name__ == "__main__":
    plan = json.loads(sys.argv[1])
    with Path(plan["stack"]).open("a") as stack:
        left = max(plan["deadline"] - monotonic(), SHORTEST_TIME_SECONDS)
        faulthandler.dump_traceback_later(left, file=stack)
        Program(plan).run(sys.argv[2:])
