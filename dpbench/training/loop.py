"""The epochs of one training on one rank: steps, log, evaluation, checkpoints, in that order.

Between two lines of the log nothing waits for the device. Every rank makes the same calls in the
same order, as most of them are collectives. Only rank 0 writes the log and the checkpoints; the
others wait for it, however long that takes.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from dpbench.architecture import Architecture, items_per_sample
from dpbench.codec import decode, encode
from dpbench.data.batch import sample_count
from dpbench.data.datasets import Splits
from dpbench.data.loading import loaded_ahead
from dpbench.data.sharding import EpochPlan
from dpbench.errors import TrainingFailed, require_finite
from dpbench.measure.device import memory_peaks, random_states
from dpbench.measure.rank_model import build_rank_model
from dpbench.messages import option_words
from dpbench.parallel import RanksDiffer, check_sync
from dpbench.parallel.agreement import tensors_sha256
from dpbench.parallel.devices import synchronize
from dpbench.parallel.torch_private import broadcast_coalesced
from dpbench.records.trial import MemoryPeaks
from dpbench.rendezvous.process_group import RankGroup
from dpbench.training.checkpoint import (
    BEST,
    Checkpoint,
    Position,
    latest_checkpoint,
    restore,
    save_checkpoint,
)
from dpbench.training.evaluation import evaluate
from dpbench.training.events import EndLine, EpochLine, Event, Score, StartLine, StepLine, to_line
from dpbench.training.run_folder import CHECKPOINTS, TrainingJob, open_log


@dataclass(kw_only=True, slots=True)
class Totals:
    """Totals of the steps since the last line of the log."""

    first_step: int
    """Number of steps done before them."""
    began: float = field(default_factory=perf_counter)
    """Their begin on the clock of perf_counter."""
    paused_seconds: float = 0.0
    """Seconds since then that are no part of the speed, as of evaluation."""
    waited_seconds: float = 0.0
    """Seconds that this rank waited for samples."""
    loss_sum: float = 0.0
    """Sum of the loss over the samples of all ranks, without those of `unread`."""
    unread: list[tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=list)
    """What the latest steps have left on the device: the sum of the loss over this rank's samples,
    float64, and the gradient norm, None without clipping."""


class TrainingLoop:
    """Trains from the start, or from a checkpoint of the same spec, to the last epoch.

    Close it, so that another process can write to the log. Raises FileError if the run folder
    cannot be used, UsageError for a checkpoint that does not fit.
    """

    def __init__(
        self,
        job: TrainingJob,
        ranks: RankGroup,
        architecture: Architecture,
        splits: Splits,
        devices: Sequence[torch.device],
        checkpoint: Checkpoint | None,
    ) -> None:
        self.job, self.ranks, self.architecture = job, ranks, architecture
        self.splits, self.devices = splits, devices
        self.position = Position() if checkpoint is None else checkpoint.position
        self._checkpoint_file = None if checkpoint is None else checkpoint.file
        self._began = perf_counter()
        self._divide(self.position.shares)
        # Initial parameters depend only on the seed. Each rank has its own random numbers for
        # training, as in dropout: torch's, not those of Python and NumPy.
        self.model = build_rank_model(architecture, job.spec, ranks.rank, devices[0])
        self._speeds: list[float] | None = None
        """Samples per second of this rank's forward passes in the epoch, for `--balance speed`."""
        if job.spec.balance == "speed":
            self._speeds = time_forward(self.model.module, devices[0])
        if checkpoint is not None:
            restore(checkpoint, self.model, ranks.rank)
        self._log = open_log(job.folder) if ranks.rank == 0 else None

    def _divide(self, shares: Sequence[float]) -> None:
        """Set each rank's share of every batch; () means equal shares."""
        self.position.shares = tuple(shares)
        self.plan = EpochPlan(self.job.spec, len(self.splits.train), shares=shares)

    def train(self) -> EndLine:
        """Train the remaining epochs, or up to the last step, and evaluate at that point.

        Raises TrainingFailed, on all ranks alike: ranks differ, or a number is not finite.
        """
        steps = self.plan.steps_per_epoch
        own_samples = self.plan.samples_of(self.ranks.rank, steps)
        processes = self.ranks.gather([socket.gethostname(), os.getpid(), own_samples])
        hosts, pids, samples = zip(*processes, strict=True)
        parameters = self.model.module.parameters()
        start = StartLine(
            world_size=self.ranks.size,
            hosts=hosts,
            pids=pids,
            samples_per_rank=samples,
            steps_per_epoch=steps,
            parameters=sum(p.numel() for p in parameters if p.requires_grad),
            epoch=self.position.step // steps + 1,
            step=self.position.step,
            checkpoint=self._checkpoint_file,
            item=self.architecture.item,
            items_per_sample=items_per_sample(self.architecture),
        )
        self._add(start)
        last_step, score = self.job.spec.epochs * steps, None
        if self.job.run.max_steps is not None:
            last_step = min(last_step, self.job.run.max_steps)
        self._totals = Totals(first_step=self.position.step)  # set-up is no part of the speed
        while self.position.step < last_step:
            begun = perf_counter()
            epoch = self.position.step // steps
            self._train_steps(epoch, min(last_step, (epoch + 1) * steps))
            self._sync_parameters()
            ended = perf_counter()
            score = None
            if self.position.step % steps == 0:
                score = self._end_epoch(ended - begun)
            else:
                # The score of a part of an epoch is not compared with those of whole ones, so that
                # a resumption finds the best of them as if there had been no stop.
                self._save(best=False)
            self._totals.paused_seconds += perf_counter() - ended
        end = self._end_line(start, score or self._evaluate())
        self._add(end)
        return end

    def _train_steps(self, epoch: int, end: int) -> None:
        """Make the steps of an epoch, counted from 0, until `end` of the training are done."""
        model, position, spec, run = self.model, self.position, self.job.spec, self.job.run
        steps_done = position.step - epoch * self.plan.steps_per_epoch
        if steps_done == 0:
            position.epoch_loss_sum = 0.0
        for group in model.optimizer.param_groups:
            group["lr"] = spec.learning_rate_in(epoch)
        batches_of_steps = self.plan.batches(self.splits.train, epoch, steps_done, self.ranks.rank)
        with loaded_ahead(batches_of_steps, run.prefetch, self.devices[0]) as steps:
            while position.step < end:
                asked = perf_counter()
                batches = next(steps)
                self._totals.waited_seconds += perf_counter() - asked
                scale = model.scaler.get_scale()
                losses, gradient_norm = model.step(
                    batches, position.step, micro_steps=len(batches), max_norm=spec.max_norm
                )
                pairs = zip(losses, batches, strict=True)
                first, *others = [loss.double() * batch.sample_count for loss, batch in pairs]
                self._totals.unread.append((sum(others, first), gradient_norm))
                position.step += 1
                # The scale falls if a gradient overflowed and the step was skipped.
                position.skipped_steps += model.scaler.get_scale() < scale
                line_is_due, check_is_due, save_is_due = (
                    every is not None and position.step % every == 0
                    for every in (run.log_interval, run.check_sync_every, run.checkpoint_every)
                )
                is_last = position.step == end
                norm = self._read_results() if line_is_due or save_is_due or is_last else None
                if line_is_due:
                    self._log_line(norm)
                if check_is_due:
                    self._check_ranks(f"epoch {epoch + 1}, step {position.step}")
                if save_is_due and not is_last:  # the last one is saved anyway
                    self._save(best=False)

    @property
    def _epoch(self) -> int:
        """The epoch of the latest step, from 1."""
        return -(-self.position.step // self.plan.steps_per_epoch)

    def _sync_parameters(self) -> None:
        """Make all ranks one model: average parameters that each rank trained alone, and take rank
        0's buffers, which ranks that average gradients have each filled from their own samples."""
        self.model.parallel.sync_parameters()
        if self.ranks.size > 1 and not self.job.spec.traits.has_local_state:
            assert dist.group.WORLD is not None
            broadcast_coalesced(self.model.module.buffers(), dist.group.WORLD)

    def _check_ranks(self, where: str) -> None:
        """Raise TrainingFailed, on all ranks and with the tensors that differ, unless they hold the
        same model; a collective."""
        if self.ranks.size > 1:
            self._sync_parameters()
            try:
                check_sync(self.model.module)
            except RanksDiffer as error:
                raise TrainingFailed(f"{where}: {error}") from None

    def _read_results(self) -> float | None:
        """Read what the steps since the last reading have left on the device, with one wait for it;
        a collective. Returns the gradient norm of the last one, if it was clipped and is finite.

        Raises TrainingFailed for one that is not, the same on all ranks, with the first step and
        rank. Under float16 a loss may be infinite, as its step is skipped.
        """
        largest = torch.nn.utils.get_total_norm(self.model.module.parameters(), math.inf)
        loss_sums, gradient_norms = zip(*self._totals.unread, strict=True)
        norm = gradient_norms[-1]
        values = [largest, largest if norm is None else norm, *loss_sums]
        self._totals.unread.clear()
        rows = self.ranks.gather(torch.stack([value.double() for value in values]).tolist())
        parameters, norms, *losses = zip(*rows, strict=True)
        position, epoch = self.position, f"epoch {self._epoch}"
        for step, by_rank in enumerate(losses, start=position.step - len(losses) + 1):
            if not self.model.scaler.is_enabled():
                for rank, loss in enumerate(by_rank):
                    require_finite("the loss", loss, f"{epoch}, step {step}, on rank {rank}")
            position.epoch_loss_sum += sum(by_rank)
            self._totals.loss_sum += sum(by_rank)
        # A finite loss may have gradients that are not.
        for rank, value in enumerate(parameters):
            where = f"{epoch}, step {position.step}, on rank {rank}"
            require_finite("a parameter", value, where)
        return None if norm is None or not math.isfinite(norms[0]) else norms[0]

    def _log_line(self, gradient_norm: float | None) -> None:
        position, plan, steps = self.position, self.plan, self.plan.steps_per_epoch
        totals, self._totals = self._totals, Totals(first_step=position.step)
        seconds = self._totals.began - totals.began - totals.paused_seconds
        samples = plan.samples_before(position.step) - plan.samples_before(totals.first_step)
        done = position.step - (self._epoch - 1) * steps
        line = StepLine(
            epoch=self._epoch,
            step=position.step,
            processed=plan.samples_before(done),
            total=plan.samples_per_epoch,
            rank_processed=plan.samples_of(0, done),
            rank_total=plan.samples_of(0, steps),
            loss=totals.loss_sum / samples,
            learning_rate=self.job.spec.learning_rate_in(self._epoch - 1),
            samples_per_second=samples / seconds,
            data_wait_share=totals.waited_seconds / seconds,
            elapsed_seconds=perf_counter() - self._began,
            gradient_norm=gradient_norm,
            skipped_steps=position.skipped_steps,
        )
        self._add(line)

    def _end_epoch(self, seconds: float) -> Score | None:
        """Evaluate, and save a checkpoint with which the next epoch begins. Returns the score."""
        position, shares, begun = self.position, self.position.shares, perf_counter()
        score = self._evaluate()
        evaluation_seconds = perf_counter() - begun
        best = score is not None and score.improves(position.best_metric)
        if score is not None and best:
            position.best_metric = score.metric
        loss = position.epoch_loss_sum / self.plan.samples_per_epoch
        if self._speeds is not None:
            # The median leaves out the first passes, which include set-up.
            speeds = self.ranks.gather(median(self._speeds))
            self._speeds.clear()
            self._divide([speed / sum(speeds) for speed in speeds])
        checkpoint = self._save(best=best)
        line = EpochLine(
            epoch=self._epoch,
            step=position.step,
            train_loss=loss,
            learning_rate=self.job.spec.learning_rate_in(self._epoch - 1),
            epoch_seconds=seconds,
            evaluation_seconds=None if score is None else evaluation_seconds,
            score=score,
            checkpoint=checkpoint,
            best=best,
            shares=shares,
        )
        self._add(line)
        return score

    def _evaluate(self) -> Score | None:
        """The score of the model; None without evaluation."""
        if self.job.run.evaluation == "off":
            return None
        return evaluate(
            self.model.module,
            self.architecture,
            self.splits.test,
            device=self.devices[0],
            ranks=self.ranks,
            how=self.job.run.evaluation,
            dtype=self.job.spec.workload.dtype,
        )

    def _save(self, *, best: bool) -> str:
        """Save a checkpoint; returns the file's name. A collective."""
        model, spec, run = self.model, self.job.spec, self.job.run
        optimizer, is_local = model.optimizer.state_dict(), spec.traits.has_local_state
        optimizers = self.ranks.gather_on_first(optimizer) if is_local else [optimizer]
        states = self.ranks.gather_on_first(random_states(*self.devices))

        def save() -> str:
            assert optimizers is not None
            assert states is not None
            checkpoint = Checkpoint(
                spec=spec,
                position=self.position,
                model=dict(model.module.state_dict()),
                optimizers=optimizers,
                scaler=model.scaler.state_dict() or None,
                random_states=states,
                samples_sha256=self.splits.sha256,
            )
            folder, keep, also = self.job.folder / CHECKPOINTS, run.max_checkpoints, run.checkpoint
            return save_checkpoint(folder, checkpoint, keep=keep, best=best, also=also).name

        return self.ranks.on_first(save)

    def _end_line(self, start: StartLine, score: Score | None) -> EndLine:
        """The last line, of rank 0, on all ranks; a collective. Raises TrainingFailed."""
        self._check_ranks(f"at the end ({option_words('check_sync_every')} finds the step)")
        memory = self.ranks.gather(encode(memory_peaks(*self.devices)))
        position, plan, checkpoints = self.position, self.plan, self.job.folder / CHECKPOINTS
        epochs, done = divmod(position.step, plan.steps_per_epoch)
        in_last_epoch = plan.samples_before(done) or plan.samples_per_epoch

        def finish() -> Any:
            last = latest_checkpoint(checkpoints)
            return encode(
                EndLine(
                    final_loss=position.epoch_loss_sum / in_last_epoch,
                    epochs=epochs,
                    steps=position.step,
                    state_sha256=tensors_sha256(sorted(self.model.module.state_dict().items())),
                    elapsed_seconds=perf_counter() - self._began,
                    samples=plan.samples_before(position.step) - plan.samples_before(start.step),
                    peaks=tuple(decode(MemoryPeaks, peaks) for peaks in memory),
                    skipped_steps=position.skipped_steps,
                    score=score,
                    best_checkpoint=BEST if (checkpoints / BEST).exists() else None,
                    last_checkpoint=None if last is None else last.name,
                )
            )

        return decode(EndLine, self.ranks.on_first(finish))

    def _add(self, event: Event) -> None:
        """Add an event to the log, on rank 0. It survives the end of this process, but there is no
        wait until it is on disk: the log can be lost, a checkpoint must not."""
        if self._log is not None:
            self._log.append(to_line(event).encode(), sync=False)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()


def time_forward(module: torch.nn.Module, device: torch.device) -> list[float]:
    """Let each forward pass in training add its samples per second to the list that is returned.

    On a CUDA device each pass waits until the device is idle.
    """
    speeds, begun = list[float](), 0.0

    def begin(*_: Any) -> None:
        nonlocal begun
        synchronize(device)
        begun = perf_counter()

    def end(_: Any, inputs: Any, keywords: Any, outputs: Any) -> None:
        synchronize(device)
        if module.training:
            count = sample_count(inputs=(inputs, keywords))
            speeds.append(count / (perf_counter() - begun))

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end, with_kwargs=True)
    return speeds
