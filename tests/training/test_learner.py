"""One optimizer step: one reduction a window, one cut of reduced gradients, no step on overflow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbench import architecture as architectures
from dpbench.data.loader import Batch
from dpbench.measure.implementations import Plain
from dpbench.measure.rank_group import RankGroup
from dpbench.specs.training import TrainingSpec
from dpbench.training import learner as learning
from dpbench.training import random_state
from dpbench.training.checkpoint import Checkpoint, from_bytes, to_bytes
from dpbench.training.learner import Learner, build_schedule, rate_factor
from tests.parallel.ranks import run_ranks
from tests.training.checkpoint_samples import same
from tests.training.jobs import ALONE, Single, ranks_here, training_spec

CPU = torch.device("cpu")


def alone(architecture: str = "Plain", **changes: Any) -> Learner:
    spec = training_spec(
        architecture, implementation="single", backend="none", group_size=1, **changes
    )
    made = architectures.load(spec.workload.architecture)
    return Learner(spec, ALONE, made, CPU, steps_per_epoch=6)


def window(*sizes: int) -> tuple[Batch, ...]:
    """Micro-batches of so many samples, weighted as those of one process."""
    generator = torch.Generator().manual_seed(1)
    whole = sum(sizes)
    inputs = torch.randn(whole, 4, generator=generator)
    targets = torch.arange(whole) % 3
    parts = zip(inputs.split(sizes), targets.split(sizes), sizes, strict=True)
    return tuple(Batch(x, y, size / whole, size) for x, y, size in parts)


def gradient(learner: Learner) -> torch.Tensor:
    """Of all parameters, in one row."""
    return torch.cat([p.grad.flatten() for p in learner.module.parameters() if p.grad is not None])


@pytest.mark.parametrize("sizes", [(12,), (6, 6), (5, 4, 2, 1)])
def test_uneven_micro_batches_give_the_gradient_of_the_whole_window(sizes: tuple[int, ...]) -> None:
    whole, parts = alone(), alone()
    one = whole.step(window(12))
    other = parts.step(window(*sizes))
    torch.testing.assert_close(gradient(parts), gradient(whole), rtol=0, atol=1e-14)
    assert other.samples == one.samples == 12
    assert float(other.loss_sum) == pytest.approx(float(one.loss_sum), rel=1e-12)


class Doubling(Plain):
    """Its backward is more than autograd's."""

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(2 * loss)


def test_the_backward_pass_is_that_of_the_implementation() -> None:
    plain, other = alone(), alone()
    other.model = Doubling(other.module)
    plain.step(window(6, 6))
    other.step(window(6, 6))
    torch.testing.assert_close(gradient(other), 2 * gradient(plain), rtol=0, atol=0)


@pytest.mark.parametrize("setting", [{"channels_last": True}, {"checkpoint_activations": True}])
def test_how_a_step_is_computed_renames_nothing(setting: dict[str, Any]) -> None:
    plain, other = alone("Blocks"), alone("Blocks", **setting)
    assert plain.module.state_dict().keys() == other.module.state_dict().keys()
    assert plain.optimizer.state_dict() == other.optimizer.state_dict()


def test_activations_computed_again_leave_every_bit() -> None:
    kept, again = alone("Blocks"), alone("Blocks", checkpoint_activations=True)
    for learner in (kept, again):
        torch.manual_seed(1)  # of dropout
        for _ in range(3):
            learner.step(window(6, 6))
    assert same(dict(kept.module.state_dict()), dict(again.module.state_dict()))


class Recorded(Plain):
    """Notes what a step does, in order."""

    events: list[str]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.events.append("forward")
        return super().forward(inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:  # type: ignore[override]
        self.events.append("no_sync(")
        yield
        self.events.append(")")

    def finish(self) -> None:
        self.events.append("finish")

    def after_step(self) -> None:
        self.events.append("after_step")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of every learner that the test makes."""
    noted: list[str] = []

    def wrap(module: torch.nn.Module, *_: object) -> Recorded:
        model = Recorded(module)
        model.events = noted
        return model

    def norm(*arguments: Any) -> torch.Tensor:
        noted.append("clip")
        return torch.nn.utils.get_total_norm([p.grad for p in [*arguments[0]]])

    monkeypatch.setattr(learning, "wrap", wrap)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", norm)
    return noted


def test_all_micro_steps_but_the_last_only_add_up(events: list[str]) -> None:
    learner = alone(max_norm=1.0, accumulation_steps=3)
    learner.optimizer.register_step_pre_hook(lambda *_: events.append("step"))
    learner.step(window(4, 4, 4))
    learner.step(window(4))  # the rest of an epoch
    assert " ".join(events) == (
        "no_sync( forward ) no_sync( forward ) forward finish clip step after_step "
        "forward finish clip step after_step"
    )


def test_a_gradient_below_the_norm_is_left_alone_to_the_bit_and_one_above_is_cut() -> None:
    free = alone()
    free.step(window(12))
    norm = float(gradient(free).norm())
    for limit, cut in ((norm * 1.01, False), (norm * 0.5, True)):
        clipped = alone(max_norm=limit)
        outcome = clipped.step(window(7, 5) if cut else window(12))
        assert outcome.gradient_norm is not None
        assert float(outcome.gradient_norm) == pytest.approx(norm, rel=1e-12)  # before the cut
        if cut:
            assert float(gradient(clipped).norm()) == pytest.approx(limit, rel=1e-5)
        else:
            assert torch.equal(gradient(clipped), gradient(free))


def test_parameters_come_from_the_seed_and_random_numbers_from_the_rank_too() -> None:
    """Of rank 1 too, although there is one process here."""
    spec = training_spec("Noisy", implementation="single", backend="none", group_size=2)
    noisy = architectures.load(spec.workload.architecture)
    drawn = []
    for rank in (0, 1, 0):
        ranks: Any = SimpleNamespace(rank=rank)
        learner = Learner(spec, ranks, noisy, CPU, steps_per_epoch=6)
        drawn.append((parameters(learner), float(torch.rand(()))))
    (one, mask_of_0), (other, mask_of_1), (_, again) = drawn
    assert torch.equal(one, other)
    assert mask_of_0 != mask_of_1
    assert mask_of_0 == again


def parameters(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.module.parameters()])


def test_nothing_is_read_back_from_the_device_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = alone("Single", max_norm=0.1, accumulation_steps=2, optimizer="sgd")
    batches = window(6, 6)

    def forbidden(*_: object) -> None:
        raise AssertionError("a step waited for the device")

    for name in ("item", "tolist", "numpy", "cpu", "__float__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, forbidden)
    outcomes = [learner.step(batches) for _ in range(2)]
    monkeypatch.undo()
    assert not any(outcome.loss_sum.requires_grad for outcome in outcomes)


@pytest.mark.parametrize(
    ("dtype", "seen"),
    [("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)],
)
def test_the_forward_pass_has_the_dtype_and_the_gradients_stay_float32(
    dtype: str, seen: torch.dtype
) -> None:
    learner = alone("Single", dtype=dtype)
    outputs: list[torch.dtype] = []
    learner.module.register_forward_hook(lambda _, __, output: outputs.append(output.dtype))
    reference = alone("Single")
    reference.step(window(12))
    learner.step(window(12))
    assert outputs == [seen]
    assert gradient(learner).dtype == torch.float32
    torch.testing.assert_close(gradient(learner), gradient(reference), rtol=0.05, atol=0.01)
    assert learner.numbers.scaler.is_enabled() == (dtype == "f16")


def overflowing(batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
    last = batches[-1]
    return (*batches[:-1], Batch(last.inputs * float("inf"), last.targets, last.weight, 0))


def test_a_step_whose_gradients_overflow_is_left_out_and_the_rate_goes_on() -> None:
    """The first of all, too, at which torch's schedule would warn."""
    learner = alone("Single", dtype="f16", max_norm=1.0, gamma=0.5)
    before = parameters(learner)
    for _ in range(6):
        learner.step(overflowing(window(6, 6)))
    assert torch.equal(parameters(learner), before)
    assert learner.updates == 0
    assert learner.numbers.scaler.get_scale() == 2**16 / 2**6
    assert learner.learning_rate == pytest.approx(0.05)  # the second epoch
    learner.step(window(6, 6))
    assert learner.updates == 1
    assert bool(parameters(learner).isfinite().all())


def test_gradients_are_cut_in_their_true_size_under_a_loss_scale() -> None:
    learner, reference = alone("Single", dtype="f16", max_norm=0.01), alone("Single")
    reference.step(window(12))
    norm = learner.step(window(12)).gradient_norm
    assert norm is not None
    assert float(norm) == pytest.approx(float(gradient(reference).norm()), rel=0.05)
    assert float(gradient(learner).norm()) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adam", "adadelta"])
def test_a_learner_that_is_restored_goes_on_to_the_same_bits(optimizer: str) -> None:
    whole = alone("Noisy", optimizer=optimizer)
    for _ in range(3):
        whole.step(window(12))
    state = whole.state()
    assert state is not None
    state["optimizers"][0]["param_groups"][0] |= {"lr": 9.0, "weight_decay": 9.0}  # not believed
    position = {"epoch": 0, "window": 3, "step": 3, "shares": (), "best_metric": None}
    position["samples_sha256"] = ""
    data = to_bytes(Checkpoint(spec=whole.spec, **position, **state))
    expected = [float(whole.step(window(5, 7)).loss_sum) for _ in range(4)]
    resumed = alone("Noisy", optimizer=optimizer)
    resumed.restore(from_bytes(data, "here"))
    assert [float(resumed.step(window(5, 7)).loss_sum) for _ in range(4)] == expected
    assert torch.equal(parameters(whole), parameters(resumed))


def test_losses_of_half_the_width_are_added_up_in_the_full_one() -> None:
    learner, means = alone("Single"), []

    def in_half(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        mean = Single().loss(outputs, targets).bfloat16()
        means.append(float(mean.detach()))
        return mean

    learner._loss = in_half
    outcome = learner.step(window(11))
    assert float(outcome.loss_sum) == means[0] * 11


def test_the_largest_parameter_tells_of_a_nan_and_waits_for_nothing() -> None:
    learner = alone("Single")
    assert float(learner.largest_parameter()) == float(parameters(learner).abs().max())
    for value in (math.inf, math.nan):
        with torch.no_grad():
            next(learner.module.parameters())[1, 2] = value
        assert not math.isfinite(learner.largest_parameter())
        assert not learner.largest_parameter().requires_grad


def on_rank(rank: int) -> dict[str, Any]:
    """What two ranks do, asked of one group."""
    ranks = ranks_here("gloo")
    answers: dict[str, Any] = {}
    for implementation, sync_every in (("ddp", 1), ("torch-ddp", 1), ("local-sgd", 2)):
        spec = training_spec("Single", implementation=implementation, sync_every=sync_every)

        def learner(spec: TrainingSpec = spec, **changes: Any) -> Learner:
            made = architectures.load(spec.workload.architecture)
            return Learner(replace(spec, **changes), ranks, made, CPU, steps_per_epoch=6)

        half = replace(spec.workload, dtype="f16")
        answers[implementation] = overflow_on_rank_1(learner(workload=half, max_norm=1.0), rank)
        answers[f"{implementation} steps"] = steps(learner(), rank)
    answers["rehearsed"] = rehearsed(ranks)
    return answers


def rehearsed(ranks: RankGroup) -> list[str]:
    """What a rehearsal leaves behind, of a model with dropout and buffers."""
    spec = training_spec("Noisy", implementation="torch-ddp")
    made = architectures.load(spec.workload.architecture)
    learner = Learner(spec, ranks, made, CPU, steps_per_epoch=6)
    before = {name: tensor.clone() for name, tensor in learner.module.state_dict().items()}
    drawn = random_state.take(CPU)
    learner.rehearse(window(5)[0])
    after = learner.module.state_dict()
    left = [name for name in before if not torch.equal(before[name], after[name])]
    left += [f"{name}.grad" for name, p in learner.module.named_parameters() if p.grad is not None]
    return left if same(drawn, random_state.take(CPU)) else [*left, "random numbers"]


def overflow_on_rank_1(learner: Learner, rank: int) -> dict[str, Any]:
    """In the second of four steps."""
    scales, updates = [], []
    for number in range(4):
        batches = window(3, 2)
        learner.step(overflowing(batches) if (number, rank) == (1, 1) else batches)
        scales.append(learner.numbers.scaler.get_scale())
        updates.append(learner.updates)
    learner.settle()
    return {"scales": scales, "updates": updates, "parameters": parameters(learner).tolist()}


def steps(learner: Learner, rank: int) -> dict[str, Any]:
    """Windows of three micro-batches, other ones on each rank."""
    after, collectives = [], []
    for _ in range(4):
        batches = tuple(replace(batch, inputs=batch.inputs + rank) for batch in window(3, 2, 1))
        learner.step(batches)
        communication = learner.model.communication()
        collectives.append(communication.collectives if communication else None)
        after.append(parameters(learner).tolist())
    return {"collectives": collectives, "parameters": after}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """By rank."""
    return run_ranks(on_rank, tmp_path_factory.mktemp("ranks") / "store")


@pytest.mark.parametrize("implementation", ["ddp", "torch-ddp", "local-sgd"])
def test_an_overflow_on_one_rank_leaves_the_step_out_on_all(
    both: list[dict[str, Any]], implementation: str
) -> None:
    one, other = (of_rank[implementation] for of_rank in both)
    assert one["updates"] == other["updates"] == [1, 1, 2, 3]
    assert one["scales"] == other["scales"] == [65536.0, 32768.0, 32768.0, 32768.0]
    assert one["parameters"] == other["parameters"]
    assert all(map(math.isfinite, one["parameters"]))


def test_of_a_rehearsal_nothing_stays(both: list[dict[str, Any]]) -> None:
    assert [of_rank["rehearsed"] for of_rank in both] == [[], []]


def test_a_window_is_reduced_once_however_many_micro_steps_it_has(
    both: list[dict[str, Any]],
) -> None:
    assert both[0]["ddp steps"]["collectives"] == [1, 2, 3, 4]


def test_local_sgd_is_one_model_right_after_each_average_and_not_in_between(
    both: list[dict[str, Any]],
) -> None:
    assert both[0]["local-sgd steps"]["collectives"] == [0, 1, 1, 2]
    pairs = zip(*(of_rank["local-sgd steps"]["parameters"] for of_rank in both), strict=True)
    assert [one == other for one, other in pairs] == [False, True, False, True]


def rates(steps: int, steps_per_epoch: int, **changes: object) -> list[float]:
    """With which each of the first steps is made."""
    spec = training_spec(**changes)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=spec.learning_rate)
    schedule = build_schedule(optimizer, spec, steps_per_epoch)
    made = []
    for _ in range(steps):
        made.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return made


@given(gamma=st.floats(0.01, 1.0), steps_per_epoch=st.integers(1, 5), epochs=st.integers(1, 6))
def test_the_rate_of_each_epoch_is_that_of_torchs_step_lr(
    gamma: float, steps_per_epoch: int, epochs: int
) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    reference = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=gamma)
    expected = []
    for _ in range(epochs):
        expected += [optimizer.param_groups[0]["lr"]] * steps_per_epoch
        optimizer.step()
        reference.step()
    ours = rates(epochs * steps_per_epoch, steps_per_epoch, gamma=gamma)
    assert ours == pytest.approx(expected, rel=1e-12)


def test_the_warm_up_is_a_line_from_the_workloads_rate_to_the_scaled_one() -> None:
    """Rate 0.1 for 4 samples; 2 replicas and 2 micro-steps make 16, so linear scaling asks for
    0.4: 0.1, 0.175, 0.25, 0.325, 0.4 from step 4 on; epochs of 3 steps, each at 0.5 of the one
    before."""
    made = rates(8, 3, learning_rate_rule="linear", accumulation_steps=2, warmup_steps=4, gamma=0.5)
    by_hand = [0.1, 0.175, 0.25, 0.1625, 0.2, 0.2, 0.1, 0.1]
    assert made == pytest.approx(by_hand, rel=1e-12)


def test_without_a_warm_up_the_first_step_has_the_scaled_rate() -> None:
    assert rates(1, 3, learning_rate_rule="sqrt", accumulation_steps=2) == pytest.approx([0.2])
    assert rate_factor(0, steps_per_epoch=3, gamma=0.7) == 1.0


def test_a_schedule_that_goes_on_after_some_steps_has_the_rates_of_one_that_made_them() -> None:
    spec = training_spec(warmup_steps=5, learning_rate_rule="linear")
    whole = rates(8, 3, warmup_steps=5, learning_rate_rule="linear")
    for done in range(1, 7):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=100.0)
        resumed = build_schedule(optimizer, spec, 3, done=done)
        assert optimizer.param_groups[0]["lr"] == whole[done]
        optimizer.step()
        resumed.step()
        assert optimizer.param_groups[0]["lr"] == whole[done + 1]
