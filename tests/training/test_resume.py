from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dpbench.errors import UsageError
from dpbench.specs.training import TrainingRun, TrainingSpec
from dpbench.training import archive, resume
from dpbench.training.checkpoint import Checkpoint, from_bytes, to_bytes, to_plain
from dpbench.training.checkpoint_folder import CheckpointFolder
from dpbench.training.job import TrainingJob
from dpbench.training.resume import (
    agreed_checkpoint,
    broadcast_bytes,
    opening_note,
    require_fit,
)
from tests.parallel.ranks import run_ranks
from tests.training.checkpoint_samples import SPEC, checkpoint, same, trained
from tests.training.jobs import ALONE, ranks_here


def job(folder: Path, resume: str | None = "auto", spec: TrainingSpec = SPEC) -> TrainingJob:
    return TrainingJob(spec=spec, run=TrainingRun(), folder=folder, prepared=None, resume=resume)


def save(folder: Path, *checkpoints: Checkpoint) -> list[Path]:
    """Into the checkpoints of a run folder."""
    with CheckpointFolder(folder / "checkpoints", keep=99) as kept:
        return [kept.save(each, best=False) for each in checkpoints]


def refusal(asked: TrainingJob) -> str:
    with pytest.raises(UsageError) as caught:
        agreed_checkpoint(asked, ALONE)
    words = str(caught.value)
    assert "\n" not in words
    return words


def test_auto_takes_the_latest_and_a_path_the_one_it_names(tmp_path: Path) -> None:
    first, latest = save(tmp_path, checkpoint(8), checkpoint(16))
    found = agreed_checkpoint(job(tmp_path), ALONE)
    assert found is not None
    assert (found.step, found.source) == (16, str(latest))
    found = agreed_checkpoint(job(tmp_path / "another", str(first)), ALONE)
    assert found is not None
    assert found.step == 8


def test_nothing_is_asked_for_or_there(tmp_path: Path) -> None:
    save(tmp_path, checkpoint(8))
    assert agreed_checkpoint(job(tmp_path, None), ALONE) is None
    assert agreed_checkpoint(job(tmp_path / "new"), ALONE) is None
    assert not (tmp_path / "new").exists()


def test_a_resumption_says_from_where(tmp_path: Path) -> None:
    (path,) = save(tmp_path, checkpoint(8))
    found = agreed_checkpoint(job(tmp_path), ALONE)
    assert opening_note(job(tmp_path), found) == (
        f"training goes on from {path}, after 8 optimizer steps, in epoch 2 of 3"
    )
    assert opening_note(job(tmp_path), None) == (
        f"no checkpoint in {tmp_path}/checkpoints: training starts from the beginning"
    )
    assert opening_note(job(tmp_path, None), None) is None


def test_a_resumption_after_one_step_counts_one(tmp_path: Path) -> None:
    (path,) = save(tmp_path, checkpoint(1))
    found = agreed_checkpoint(job(tmp_path), ALONE)
    assert "after 1 optimizer step, in epoch " in str(opening_note(job(tmp_path), found))
    ended = replace(job(tmp_path), run=TrainingRun(max_steps=1))
    assert opening_note(ended, found) == (
        f"{path} is after 1 optimizer step: with --max-steps 1 nothing is left to train"
    )


def test_epochs_may_grow_and_not_shrink_below_what_is_done(tmp_path: Path) -> None:
    (path,) = save(tmp_path, checkpoint(8, epoch=2, window=0))

    def epochs(number: int) -> TrainingJob:
        return job(tmp_path, spec=replace(SPEC, epochs=number))

    found = agreed_checkpoint(epochs(9), ALONE)
    assert opening_note(epochs(9), found) == (
        f"training goes on from {path}, after 8 optimizer steps, in epoch 3 of 9"
    )
    found = agreed_checkpoint(epochs(2), ALONE)
    assert opening_note(epochs(2), found) == (f"{path} has all 2 epochs: nothing is left to train")
    assert refusal(epochs(1)) == f"{path} is in epoch 2: got 1 epochs; expected at least 2"
    (path,) = save(tmp_path, checkpoint(9, epoch=2, window=1))  # the third has begun
    assert refusal(epochs(2)) == f"{path} is in epoch 3: got 2 epochs; expected at least 3"


def test_steps_may_end_before_what_is_done(tmp_path: Path) -> None:
    (path,) = save(tmp_path, checkpoint(8, epoch=2, window=0))
    ended = replace(job(tmp_path), run=TrainingRun(max_steps=8))
    assert opening_note(ended, agreed_checkpoint(ended, ALONE)) == (
        f"{path} is after 8 optimizer steps: with --max-steps 8 nothing is left to train"
    )


def test_activations_may_be_computed_again_but_the_layout_stays(tmp_path: Path) -> None:
    save(tmp_path, checkpoint(8))

    def computed(**settings: Any) -> TrainingJob:
        return job(tmp_path, spec=replace(SPEC, workload=replace(SPEC.workload, **settings)))

    assert agreed_checkpoint(computed(checkpoint_activations=True), ALONE) is not None
    for setting, difference in (
        ({"channels_last": True}, "channels_last: False -> True"),
        ({"compile": "default"}, "compile: 'none' -> 'default'"),
    ):
        assert f"another training: {difference};" in refusal(computed(**setting))


def test_another_training_is_refused_with_what_differs(tmp_path: Path) -> None:
    (path,) = save(tmp_path, checkpoint(8))
    other = replace(SPEC, batch_size=16, workload=replace(SPEC.workload, seed=3), epochs=5)
    assert refusal(job(tmp_path, spec=other)) == (
        f"{path} belongs to another training: seed: 0 -> 3, batch_size: 8 -> 16; give the options "
        "that it was made with, or train anew without --resume"
    )


def test_training_on_from_an_earlier_one_needs_another_folder(tmp_path: Path) -> None:
    first, latest = save(tmp_path, checkpoint(8), checkpoint(16))
    assert refusal(job(tmp_path, str(first))) == (
        f"{first} is of step 8, and {latest} is later; expected the latest (--resume auto), or "
        "another folder to train in from an earlier one"
    )


def test_a_path_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "none.pt"
    assert refusal(job(tmp_path, str(missing))) == (
        f"{missing} does not exist; expected a checkpoint, or --resume auto"
    )
    assert refusal(job(tmp_path, str(tmp_path))) == f"{tmp_path} is no file; expected a checkpoint"
    (path,) = save(tmp_path, checkpoint(8))
    assert refusal(job(tmp_path, str(tmp_path))).endswith(f"expected a checkpoint, e.g. {path}")
    assert refusal(job(tmp_path, "/dev/zero")) == "/dev/zero is a device; expected a regular file"
    assert "cannot read" in refusal(job(tmp_path, "x" * 5000))


def test_a_latest_one_that_a_later_dpbench_wrote_is_not_passed_over(tmp_path: Path) -> None:
    _, latest = save(tmp_path, checkpoint(8), checkpoint(16))
    newer = {**to_plain(checkpoint(16)), "format_version": 2}
    latest.write_bytes(archive.dumps(newer))
    assert refusal(job(tmp_path)).endswith("got format version 2; this dpbench reads 1")
    assert latest.exists()


def stored(**changes: object) -> Checkpoint:
    return from_bytes(to_bytes(checkpoint(**changes)), "best.pt")  # type: ignore[arg-type]


def misfit(found: Checkpoint) -> str:
    with pytest.raises(UsageError) as caught:
        require_fit(found, trained()[0], found.samples_sha256)
    return str(caught.value).removeprefix("best.pt does not fit the model: ")


def test_tensors_of_another_model_are_named() -> None:
    model = dict(checkpoint().model)
    require_fit(stored(), trained()[0], stored().samples_sha256)
    assert misfit(stored(model={**model, "0.bias": torch.ones(5)})) == (
        "its '0.bias' is (5,) float32; expected (4,) float32"
    )
    half = {name: tensor.half() for name, tensor in model.items()}
    assert misfit(stored(model=half)) == (
        "its '0.bias' is (4,) float16; expected (4,) float32 (and 8 more)"
    )
    bias = model.pop("0.bias")
    assert misfit(stored(model=model)) == "it lacks '0.bias'"
    assert misfit(stored(model={**model, "0.bias": bias, "3.bias": bias})) == (
        "it has '3.bias', which the model has not"
    )


def all_the_same(words: str) -> str:
    assert set(ranks_here("gloo").gather_bytes(words.encode())) == {words.encode()}
    return words


def only_rank_0_has_the_file(folder: Path, rank: int) -> None:
    """The run folder of rank 1 is on another host, and not there."""
    resume.PIECE_BYTES = 1000  # so that it takes several
    found = agreed_checkpoint(job(folder / f"host{rank}"), ranks_here("gloo"))
    assert found is not None
    path = folder / "host0" / "checkpoints" / "step-00000016.pt"
    assert all_the_same(str(found.source)) == str(path)
    assert same(to_plain(found), to_plain(from_bytes(path.read_bytes(), "here")))
    assert not (folder / "host1").exists()


def without_a_checkpoint_all_start_anew(folder: Path, rank: int) -> None:
    if rank == 1:  # which rank 1 has is not asked
        save(folder / "one", checkpoint(8))
    assert agreed_checkpoint(job(folder / ("one" if rank else "none")), ranks_here("gloo")) is None


def what_is_wrong_is_said_by_all_ranks(folder: Path, rank: int) -> None:
    for path in sorted((folder / "bad").iterdir()):
        began = time.monotonic()
        asked = job(folder / f"host{rank}", str(path) if rank == 0 else "not here")
        with pytest.raises(UsageError) as caught:
            agreed_checkpoint(asked, ranks_here("gloo"))
        words = all_the_same(str(caught.value))
        assert words == json.loads((folder / "words.json").read_text())[path.name]
        assert time.monotonic() - began < 10
    assert not (folder / "planted").exists()


def a_file_that_one_rank_cannot_read_is_refused_by_all(folder: Path, rank: int) -> None:
    """As where it has an earlier release of torch."""
    loads = archive.loads
    if rank == 1:
        archive.loads = lambda data, where: loads(data[:-1], where)
    try:
        with pytest.raises(UsageError) as caught:
            agreed_checkpoint(job(folder / f"host{rank}"), ranks_here("gloo"))
    finally:
        archive.loads = loads
    assert all_the_same(str(caught.value)).startswith(f"rank 1: {folder}/host0/checkpoints/step-")


def nothing_is_a_message_too(folder: Path, rank: int) -> None:
    assert broadcast_bytes(None if rank else b"", ranks_here("gloo")) == b""


def damaged_files(folder: Path) -> dict[str, str]:
    """Writes them; their names with what is said of them."""
    (folder / "bad").mkdir()
    whole = to_bytes(checkpoint(8))
    weights = checkpoint(8).model["0.weight"].numpy().tobytes()
    newer = {**to_plain(checkpoint(8)), "format_version": 2, "model": {}}
    hostile = {"model": Hostile(folder / "planted")}
    contents: dict[str, bytes] = {
        "empty.pt": b"",
        "text.pt": b"epoch 1\n",
        "bare.pt": archive.dumps({"w": torch.ones(1)}),
        "newer.pt": archive.dumps(newer),
        "hostile.pt": archive.dumps(hostile),
        "changed.pt": whole.replace(weights, bytes(len(weights))),
        "cut.pt": whole[: len(whole) // 2],
    }
    words = {}
    for name, content in contents.items():
        path = folder / "bad" / name
        path.write_bytes(content)
        words[name] = refusal(job(folder / "host0", str(path)))
    return words


class Hostile:
    """Unpickled, it would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_two_ranks_go_on_from_the_same_or_not_at_all(tmp_path: Path) -> None:
    save(tmp_path / "host0", checkpoint(16))
    words = damaged_files(tmp_path)
    assert len(words) == 7
    (tmp_path / "words.json").write_text(json.dumps(words))
    checks = [
        only_rank_0_has_the_file,
        without_a_checkpoint_all_start_anew,
        what_is_wrong_is_said_by_all_ranks,
        a_file_that_one_rank_cannot_read_is_refused_by_all,
        nothing_is_a_message_too,
    ]
    run_ranks([partial(check, tmp_path) for check in checks], tmp_path / "store")
