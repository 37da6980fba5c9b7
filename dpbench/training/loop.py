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
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from dpbench.architecture import Architecture, items_per_sample
from dpbench.codec import decode, encode
from dpbench.data.batch import Batch, sample_count
from dpbench.data.datasets import Splits
from dpbench.data.loading import loaded_ahead
from dpbench.data.sharding import EpochPlan
from dpbench.errors import TrainingFailed
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
from dpbench.training.divergence import require_finite
from dpbench.training.evaluation import evaluate
from dpbench.training.events import EndLine, EpochLine, Event, Score, StartLine, StepLine, to_line
from dpbench.training.run_folder import CHECKPOINTS, TrainingJob, open_log


@dataclass(slots=True)
class LineTotals:
    """Totals since the last line of the log, without evaluation; samples are those of all
    ranks."""

    seconds: float = 0.0
    waited_seconds: float = 0.0
    """Seconds that this rank waited for samples."""
    samples: int = 0
    loss_sum: float = 0.0
    """Sum of the loss over these samples."""


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
        self._source = None if checkpoint is None else checkpoint.source
        self._began, self._samples = perf_counter(), 0
        """The samples of all ranks since then."""
        self._line_totals = LineTotals()
        self._loss_sums: list[torch.Tensor] = []
        """Sum of the loss over this rank's samples of each step since the last reading; float64,
        on the device."""
        self._gradient_norm: torch.Tensor | None = None
        """That of the latest step, on the device; None without clipping."""
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
        self._add(self._start_line())
        last_step, score = self.job.spec.epochs * self.plan.steps_per_epoch, None
        if self.job.run.max_steps is not None:
            last_step = min(last_step, self.job.run.max_steps)
        while self.position.step < last_step:
            seconds = self._train_steps(last_step)
            self._sync_parameters()
            # The score of a part of an epoch is not compared with those of whole ones, so that a
            # resumption finds the best of them as if there had been no stop.
            is_whole = self.position.step % self.plan.steps_per_epoch == 0
            score = self._end_epoch(seconds) if is_whole else None
        end = self._end_line(score or self._evaluate())
        self._add(end)
        return end

    def _start_line(self) -> StartLine:
        """The first line of this start; a collective."""
        steps = self.plan.steps_per_epoch
        own_samples = self.plan.samples_before(steps, self.ranks.rank)
        processes = self.ranks.gather([socket.gethostname(), os.getpid(), own_samples])
        hosts, pids, samples = zip(*processes, strict=True)
        parameters = self.model.module.parameters()
        return StartLine(
            world_size=self.ranks.size,
            hosts=hosts,
            pids=pids,
            samples_per_rank=samples,
            steps_per_epoch=steps,
            parameters=sum(p.numel() for p in parameters if p.requires_grad),
            epoch=self.position.step // steps + 1,
            step=self.position.step,
            checkpoint=self._source,
            item=self.architecture.item,
            items_per_sample=items_per_sample(self.architecture),
        )

    def _train_steps(self, last_step: int) -> float:
        """Make the steps of the rest of an epoch, up to the last step of the training; returns
        their seconds."""
        position, run, plan = self.position, self.job.run, self.plan
        epoch, first = divmod(position.step, plan.steps_per_epoch)
        if first == 0:
            position.epoch_loss_sum = 0.0
        for group in self.model.optimizer.param_groups:
            group["lr"] = self.job.spec.learning_rate_in(epoch)
        batches_of_steps = plan.batches(self.splits.train, epoch, first, self.ranks.rank)
        with loaded_ahead(batches_of_steps, run.prefetch, self.devices[0]) as steps:
            began = ended = asked = perf_counter()
            for number, batches in enumerate(steps, start=first):
                waited = perf_counter() - asked
                self._take_step(batches)
                is_over, is_last = number + 1 == plan.steps_per_epoch, position.step == last_step
                line_is_due = is_due(run.log_interval, position.step)
                is_saved = is_last or is_due(run.checkpoint_every, position.step)
                is_read = line_is_due or is_saved or is_over
                norm = self._read_results() if is_read else None
                begun, ended, samples = ended, perf_counter(), plan.samples_in(number)
                self._samples += samples
                self._line_totals.seconds += ended - begun
                self._line_totals.waited_seconds += waited
                self._line_totals.samples += samples
                if line_is_due:
                    self._log_line(norm)
                if is_due(run.check_sync_every, position.step):
                    self._check_ranks(f"epoch {epoch + 1}, step {position.step}")
                if is_saved and not is_over:  # the end of an epoch saves one anyway
                    self._save(best=False)
                if is_last:
                    break
                asked = perf_counter()
        return ended - began

    def _take_step(self, batches: Sequence[Batch]) -> None:
        """Make the next step; what it leaves on the device is read later."""
        model, position = self.model, self.position
        scale, max_norm = model.scaler.get_scale(), self.job.spec.max_norm
        losses, self._gradient_norm = model.step(
            batches, position.step, micro_steps=len(batches), max_norm=max_norm
        )
        pairs = zip(losses, batches, strict=True)
        first, *others = [loss.double() * batch.sample_count for loss, batch in pairs]
        self._loss_sums.append(sum(others, first))
        position.step += 1
        # The scale falls if a gradient overflowed and the step was skipped.
        position.skipped_steps += model.scaler.get_scale() < scale

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
        norm = self._gradient_norm
        values = [largest, largest if norm is None else norm, *self._loss_sums]
        self._loss_sums = []
        rows = self.ranks.gather(torch.stack([value.double() for value in values]).tolist())
        parameters, norms, *losses = zip(*rows, strict=True)
        position, epoch = self.position, f"epoch {self._epoch}"
        for step, by_rank in enumerate(losses, start=position.step - len(losses) + 1):
            if not self.model.scaler.is_enabled():
                for rank, loss in enumerate(by_rank):
                    require_finite("the loss", loss, f"{epoch}, step {step}, on rank {rank}")
            position.epoch_loss_sum += sum(by_rank)
            self._line_totals.loss_sum += sum(by_rank)
        # A finite loss may have gradients that are not.
        for rank, value in enumerate(parameters):
            where = f"{epoch}, step {position.step}, on rank {rank}"
            require_finite("a parameter", value, where)
        return None if norm is None or not math.isfinite(norms[0]) else norms[0]

    def _log_line(self, gradient_norm: float | None) -> None:
        position, plan, steps = self.position, self.plan, self.plan.steps_per_epoch
        totals, self._line_totals = self._line_totals, LineTotals()
        done = position.step - (self._epoch - 1) * steps
        line = StepLine(
            epoch=self._epoch,
            step=position.step,
            processed=plan.samples_before(done),
            total=plan.samples_before(steps),
            rank_processed=plan.samples_before(done, rank=0),
            rank_total=plan.samples_before(steps, rank=0),
            loss=totals.loss_sum / totals.samples,
            learning_rate=self.job.spec.learning_rate_in(self._epoch - 1),
            samples_per_second=totals.samples / totals.seconds,
            data_wait_share=totals.waited_seconds / totals.seconds,
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
        loss = position.epoch_loss_sum / self.plan.samples_before(self.plan.steps_per_epoch)
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

    def _end_line(self, score: Score | None) -> EndLine:
        """The last line, of rank 0, on all ranks; a collective. Raises TrainingFailed."""
        self._check_ranks(f"at the end ({option_words('check_sync_every')} finds the step)")
        memory = self.ranks.gather(encode(memory_peaks(*self.devices)))
        position, checkpoints = self.position, self.job.folder / CHECKPOINTS
        epochs, done = divmod(position.step, self.plan.steps_per_epoch)
        trained = self.plan.samples_before(done or self.plan.steps_per_epoch)

        def finish() -> Any:
            last = latest_checkpoint(checkpoints)
            return encode(
                EndLine(
                    final_loss=position.epoch_loss_sum / trained,
                    epochs=epochs,
                    steps=position.step,
                    state_sha256=tensors_sha256(sorted(self.model.module.state_dict().items())),
                    elapsed_seconds=perf_counter() - self._began,
                    samples=self._samples,
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


def is_due(every: int | None, step: int) -> bool:
    return every is not None and step % every == 0
