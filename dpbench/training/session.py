"""The epochs of one training on one rank: windows, log, evaluation, checkpoints, in that order.

Between two lines of the log nothing waits for the device. Every rank makes the same calls in the
same order, as most of them are collectives. Only rank 0 writes the log and the checkpoints; the
others wait for it, however long that takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import torch

from dpbench.architecture import Architecture
from dpbench.codec import decode, encode
from dpbench.data.datasets import Splits
from dpbench.data.loader import EpochLoader, LoadedWindow
from dpbench.data.sharding import EpochPlan
from dpbench.errors import DpbenchError, UsageError
from dpbench.measure.precision import SMALLEST_SCALE
from dpbench.measure.rank_group import RankGroup
from dpbench.parallel import RanksDiffer, check_sync
from dpbench.training.agreement import refused_by_all
from dpbench.training.balance import ForwardTimer, agreed_shares
from dpbench.training.checkpoint import Checkpoint
from dpbench.training.checkpoint_folder import BEST, CheckpointFolder, latest_checkpoint
from dpbench.training.evaluation import Score, evaluate
from dpbench.training.events import EpochLine, Event, StepLine
from dpbench.training.job import TrainingJob
from dpbench.training.learner import Learner, StepOutcome
from dpbench.training.progress import MeanLoss, NotFinite, Pace, Position, Sums, read_steps
from dpbench.training.resume import require_fit
from dpbench.training.run_folder import RunFolder


class OutOfSync(DpbenchError):
    """The ranks no longer hold the same model."""


class Session:
    """Trains from the start, or from the position set by `restore`, to the last epoch."""

    def __init__(
        self,
        job: TrainingJob,
        ranks: RankGroup,
        architecture: Architecture,
        splits: Splits,
        samples_sha256: str,
        device: torch.device,
        writer: Writer,
    ) -> None:
        self.at = Position()
        self.pace = Pace()
        """Pace since the session began."""
        self.score: Score | None = None
        """Score of the last evaluation."""
        self.began = perf_counter()
        self.splits = splits
        self._spec, self._run = job.spec, job.run
        self._ranks, self._device, self._writer = ranks, device, writer
        self._architecture = architecture
        self._samples_sha256 = samples_sha256
        self._line_pace = Pace()
        """Pace since the last line of the log."""
        self._rate = 0.0
        self._gradient_norm: float | None = None
        self._unread: list[StepOutcome] = []
        """Values of the steps since the last reading, on the device."""
        self._divide(job.spec.shares)
        self.learner = Learner(job.spec, ranks, architecture, device, self.plan.steps)
        if self.learner.model.rehearsals:
            with self._loader.epoch(0) as windows:
                self.learner.rehearse(next(windows).batches[0])
        balances = job.spec.balance == "speed"
        self._timer = ForwardTimer(self.learner.module, device) if balances else None

    def _divide(self, shares: Sequence[float]) -> None:
        """Set each process's share of every batch; () means equal shares."""
        self.shares = tuple(shares)
        self.plan = EpochPlan(self._spec, len(self.splits.train), shares=self.shares or None)
        self._first_rank_total = self.plan.samples_of(process=0)
        self._loader = EpochLoader(
            self.splits.train,
            self.plan,
            process=self._ranks.rank,
            device=self._device,
            prefetch=self._run.prefetch,
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from `checkpoint`, which has the same spec.

        This is a collective. Raises UsageError, on all ranks, if something in it does not fit on
        one.
        """
        with refused_by_all(self._ranks):
            try:
                require_fit(checkpoint, self.learner.module, self._samples_sha256)
                sums = decode(Sums, checkpoint.progress)
                self.learner.restore(checkpoint)
            except UsageError:
                raise
            except Exception as error:  # an unexpected part of a file may raise any
                where = f"{checkpoint.source}: it does not fit this training"
                first = str(error).partition("\n")[0]
                raise UsageError(f"{where}: {type(error).__name__}: {first}") from error
        self.at = Position(
            epoch=checkpoint.epoch,
            window=checkpoint.window,
            step=checkpoint.step,
            best_metric=checkpoint.best_metric,
            sums=sums,
        )
        self._divide(checkpoint.shares)

    def train(self) -> None:
        """Train the remaining epochs, or up to the last step, and evaluate at that point."""
        while self.at.epoch < self._spec.epochs and not self._is_stopped:
            self._train_epoch()
        if self.score is None and self._run.evaluation != "off":
            self.score = self._evaluate()

    def _train_epoch(self) -> None:
        seconds_before = self.pace.seconds
        with self._loader.epoch(self.at.epoch, self.at.window) as windows:
            begun, waited = perf_counter(), 0.0
            for window in windows:
                self._train_window(window)
                ended = perf_counter()
                for pace in (self.pace, self._line_pace):
                    pace.seconds += ended - begun
                    pace.waited_seconds += windows.waited_seconds - waited
                begun, waited = ended, windows.waited_seconds
                self._after_window()
                if self._is_stopped:
                    break
        if self._epoch_is_over:
            self._end_epoch(self.pace.seconds - seconds_before)
        else:
            # The score of a part of an epoch is not compared with those of whole ones, so that a
            # resumption finds the best of them as if there had been no stop.
            self.learner.synchronize()
            self.score = None

    def _train_window(self, window: LoadedWindow) -> None:
        at, learner = self.at, self.learner
        self._rate = learner.learning_rate
        updates = learner.updates
        self._unread.append(learner.step(window.batches))
        at.step += 1
        at.window += 1
        at.sums.skipped_steps += updates + 1 - learner.updates
        if self._line_is_due or self._checkpoint_is_due or self._epoch_is_over:
            self._read()

    @property
    def _line_is_due(self) -> bool:
        return self.at.step % self._run.log_interval == 0

    @property
    def _checkpoint_is_due(self) -> bool:
        every = self._run.checkpoint_every
        return self._is_stopped or (every is not None and self.at.step % every == 0)

    @property
    def _is_stopped(self) -> bool:
        most = self._run.max_steps
        return most is not None and self.at.step >= most

    @property
    def _epoch_is_over(self) -> bool:
        return self.at.window == self.plan.steps

    def _read(self) -> None:
        """Add up the values that the steps since the last reading have left on the device."""
        at, scaler = self.at, self.learner.numbers.scaler
        outcomes, self._unread = self._unread, []
        values = read_steps(
            outcomes,
            self.learner.largest_parameter(),
            self._ranks,
            epoch=at.epoch + 1,
            step=at.step,
            may_skip=scaler.is_enabled(),
        )
        for loss, samples in zip(values.loss_sums, values.samples, strict=True):
            at.sums.epoch_loss.add(loss, samples)
            at.sums.line_loss.add(loss, samples)
        at.sums.first_rank_samples += values.first_rank_samples
        self._gradient_norm = values.gradient_norm
        for pace in (self.pace, self._line_pace):
            pace.samples += sum(values.samples)
        if (scale := scaler.get_scale()) < SMALLEST_SCALE:
            raise NotFinite(
                f"the loss scale of float16 fell to {scale:.1e} by epoch {at.epoch + 1}, step "
                f"{at.step}, and gradients still overflow; take bf16, or lower the learning rate"
            )

    def _after_window(self) -> None:
        """Do what is due every so many steps; the values have been read for it."""
        if self._line_is_due:
            self._log_line()
        every = self._run.check_sync_every
        if every is not None and self._ranks.size > 1 and self.at.step % every == 0:
            self.learner.synchronize()
            try:
                check_sync(self.learner.module)
            except RanksDiffer as error:
                where = f"epoch {self.at.epoch + 1}, step {self.at.step}"
                raise OutOfSync(f"{where}: {error}") from None
        if self._checkpoint_is_due and not self._epoch_is_over:  # the end makes one anyway
            self._save(best=False)

    def _log_line(self) -> None:
        at, pace = self.at, self._line_pace
        line = StepLine(
            epoch=at.epoch + 1,
            step=at.step,
            processed=at.sums.epoch_loss.samples,
            total=self.plan.trained_samples,
            rank_processed=at.sums.first_rank_samples,
            rank_total=self._first_rank_total,
            loss=at.sums.line_loss.mean,
            learning_rate=self._rate,
            samples_per_second=pace.samples_per_second,
            data_wait_share=pace.wait_share,
            elapsed_seconds=perf_counter() - self.began,
            gradient_norm=self._gradient_norm,
            skipped_steps=at.sums.skipped_steps,
        )
        self._writer.log(line)
        at.sums.line_loss = MeanLoss()
        self._line_pace = Pace()

    def _end_epoch(self, seconds: float) -> None:
        at, shares = self.at, self.shares
        self.learner.synchronize()
        begun = perf_counter()
        self.score = None if self._run.evaluation == "off" else self._evaluate()
        evaluation_seconds = perf_counter() - begun
        best = self.score is not None and self.score.improves(at.best_metric)
        if self.score is not None and best:
            at.best_metric = self.score.metric
        if self._timer is not None:
            self._divide(agreed_shares(self._timer.take_samples_per_second(), self._ranks))
        at.begin_epoch()
        checkpoint = self._save(best=best)
        assert at.sums.final_loss is not None
        line = EpochLine(
            epoch=at.epoch,
            step=at.step,
            train_loss=at.sums.final_loss,
            learning_rate=self._rate,
            epoch_seconds=seconds,
            evaluation_seconds=None if self.score is None else evaluation_seconds,
            test_loss=None if self.score is None else self.score.loss,
            test_correct=None if self.score is None else self.score.correct,
            test_total=None if self.score is None else self.score.total,
            checkpoint=checkpoint,
            best=best,
            shares=shares,
        )
        self._writer.log(line)

    def _evaluate(self) -> Score:
        assert self._run.evaluation != "off"
        return evaluate(
            self.learner.module,
            self._architecture,
            self.splits.test,
            device=self._device,
            ranks=self._ranks,
            how=self._run.evaluation,
            dtype=self._spec.dtype,
        )

    def _save(self, *, best: bool) -> str | None:
        """Save a checkpoint; returns the file's name, None on ranks other than 0."""
        state, at = self.learner.state(), self.at
        checkpoint = None
        if state is not None:
            checkpoint = Checkpoint(
                spec=self._spec,
                epoch=at.epoch,
                window=at.window,
                step=at.step,
                shares=self.shares,
                samples_sha256=self._samples_sha256,
                best_metric=at.best_metric,
                progress=encode(at.sums),
                **state,
            )
        return self._writer.save(checkpoint, best=best)


class Writer:
    """Writes the log and the checkpoints on rank 0, and nothing on the others."""

    def __init__(self, job: TrainingJob, ranks: RankGroup) -> None:
        """Raises StoreError if the run folder cannot be used."""
        self.last_checkpoint: str | None = None
        self.best_checkpoint: str | None = None
        """Name of a file in the run folder, also from before a resumption; only rank 0 knows it."""
        self._ranks = ranks
        self._folder: RunFolder | None = None
        self._checkpoints: CheckpointFolder | None = None
        if ranks.rank == 0:
            self._folder = RunFolder.open(job.folder)
            also = None if job.run.checkpoint is None else Path(job.run.checkpoint)
            kept = self._folder.checkpoints
            self._checkpoints = CheckpointFolder(kept, job.run.max_checkpoints, also)
            newest = latest_checkpoint(kept)
            self.last_checkpoint = None if newest is None else newest.name
            self.best_checkpoint = BEST if (kept / BEST).exists() else None

    def log(self, event: Event) -> None:
        """Add an event to the log."""
        if self._folder is not None:
            self._folder.append(event)

    def save(self, checkpoint: Checkpoint | None, *, best: bool) -> str | None:
        """Save a checkpoint; returns the file's name. A collective, in which all ranks except 0
        pass None. Raises StoreError if it cannot be written."""

        def save() -> None:
            assert self._checkpoints is not None
            assert checkpoint is not None
            self.last_checkpoint = self._checkpoints.save(checkpoint, best=best).name

        self._ranks.on_first(save)
        if best:
            self.best_checkpoint = BEST
        return self.last_checkpoint

    def close(self) -> None:
        """Let another process write to the log."""
        if self._folder is not None:
            self._folder.close()
