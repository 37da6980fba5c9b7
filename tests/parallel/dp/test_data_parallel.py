from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpbench.parallel import DataParallel
from tests.parallel.ddp.one_process import assert_same, gradients, perceptron
from tests.parallel.dp.modules import (
    F64,
    Losses,
    batch,
    check_like_alone,
    parallel,
    square_mean,
)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 5, 8, 10])
def test_gradients_are_those_of_the_module_alone(replicas: int, size: int) -> None:
    check_like_alone(perceptron(), replicas, lambda module: square_mean(module, size))


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (F64, 1e-12)])
def test_outputs_in_evaluation_mode_are_those_of_the_module_alone(
    replicas: int, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
    module = module.to(dtype).eval()
    for x in (batch(size).to(dtype) for size in (1, 3, 8, 10)):
        got = parallel(module, replicas)(x)
        torch.testing.assert_close(got, module(x), rtol=tolerance, atol=tolerance)


def test_nested_keyword_inputs_and_outputs_work() -> None:
    @dataclass
    class Output:
        doubled: Tensor
        parts: dict[str, tuple[Tensor, None]]

    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = perceptron()

        def forward(self, pairs: list[dict[str, Tensor]], *, factor: Tensor, name: str) -> Output:
            y = self.inner(pairs[0]["x"]) * factor
            return Output(2 * y, {name: (y + pairs[1]["x"].sum(1, keepdim=True), None)})

    factor = torch.tensor(3.0, dtype=F64, requires_grad=True)
    pairs = [{"x": batch(7)}, {"x": batch(7, seed=1)}]

    def run(wrapped: nn.Module) -> Tensor:
        output = wrapped(pairs, factor=factor, name="part")
        assert output.parts["part"][1] is None
        return (output.doubled * output.parts["part"][0]).mean()

    check_like_alone(Nested(), 3, run)


def test_a_batch_dimension_that_is_not_there_is_refused_before_a_replica_runs() -> None:
    module = nn.Sequential(Probe())
    with pytest.raises(IndexError, match=r"cannot split dim 2 of a tensor of shape \(4, 6\)"):
        parallel(module, 2, dim=2)(batch(4))
    with pytest.raises(ValueError, match=r"disagree on the size of dim 0: \[4, 5\]"):
        parallel(module, 2)(batch(4), batch(5))
    assert module[0].calls == []


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_can_be_cleared_in_both_ways(set_to_none: bool) -> None:
    module = perceptron()
    square_mean(module).backward()
    expected = gradients(module)
    wrapper = parallel(module, 2)
    for _ in range(2):
        wrapper.zero_grad(set_to_none=set_to_none)
        square_mean(wrapper).backward()
        assert_same(gradients(module), expected)


def test_an_optimizer_from_before_the_wrapper_trains_the_same_parameters() -> None:
    module, alone = perceptron(), perceptron()
    before = torch.optim.SGD(module.parameters(), lr=0.1)
    wrapper = parallel(module, 3)
    after = torch.optim.SGD(alone.parameters(), lr=0.1)
    for model, optimizer in ((wrapper, before), (alone, after)):
        for _ in range(3):
            optimizer.zero_grad()
            square_mean(model).backward()
            optimizer.step()
    assert_same(dict(module.named_parameters()), dict(alone.named_parameters()))


def test_frozen_tied_and_unused_parameters_keep_their_rules() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6).to(F64), nn.Linear(6, 6).to(F64)
            self.b.weight = self.a.weight
            self.again = self.a
            self.a.bias.requires_grad_(False)
            self.unused = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            assert self.b.weight is self.a.weight
            return self.again(self.b(self.a(x)))

    module = Tied()
    check_like_alone(module, 2)
    assert module.a.bias.grad is None
    assert module.unused.weight.grad is None
    names = ["a.weight", "a.bias", "b.bias", "unused.weight", "unused.bias"]
    assert [name for name, _ in parallel(module, 2).named_parameters()] == names


def test_modes_reach_the_replicas() -> None:
    module = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5)).to(F64)
    wrapper, x = parallel(module, 3), batch(9)
    assert (wrapper(x) == 0).any()
    assert wrapper.eval() is wrapper
    assert not module[1].training
    assert torch.equal(wrapper(x), wrapper(x))
    wrapper.train()
    assert module[1].training
    module[1].p = 0.0
    torch.testing.assert_close(wrapper(x), module(x))


def test_the_phases_of_a_step_are_timed() -> None:
    wrapper = parallel(perceptron(), 2)
    assert set(wrapper.meter.seconds.values()) == {0.0}
    wrapper(batch(4)).sum().backward()
    assert min(wrapper.meter.seconds.values()) > 0


class Probe(nn.Linear):
    """Reports its calls: thread and samples, and the settings of the thread."""

    def __init__(self) -> None:
        super().__init__(6, 4)
        self.calls: list[tuple[str, int]] = []
        self.settings: list[tuple[Any, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append((threading.current_thread().name, len(x)))
        modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        autocast = torch.is_autocast_enabled("cpu")
        self.settings.append((*modes, autocast, torch.get_num_threads()))
        return super().forward(x)


def test_threads_share_the_modes_of_their_caller() -> None:
    probe, x = Probe(), torch.randn(4, 6)
    threads = torch.get_num_threads()
    wrapper = parallel(probe, 2, threads_per_replica=3)
    with torch.no_grad():
        assert not wrapper(x).requires_grad
    with torch.inference_mode():
        assert wrapper(x).is_inference()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert wrapper(x).dtype is torch.bfloat16
    wrapper(x).sum().backward()
    assert probe.settings[::2] == probe.settings[1::2]
    assert probe.settings[::2] == [
        (False, False, False, 3),
        (False, True, False, 3),
        (True, False, True, 3),
        (True, False, False, 3),
    ]
    assert torch.get_num_threads() == threads


class Meeting(nn.Linear):
    """Its replicas wait for each other in forward and backward."""

    barrier: threading.Barrier | None = None

    def meet(self, *_: object) -> None:
        if self.barrier is not None:
            self.barrier.wait(timeout=30)

    def forward(self, x: Tensor) -> Tensor:
        self.meet()
        y = super().forward(x)
        y.register_hook(self.meet)
        return y


def test_replicas_run_at_the_same_time_after_the_first_step() -> None:
    module = Meeting(6, 4, dtype=F64)
    wrapper, x = parallel(module, 2), batch(4)
    wrapper(x).sum().backward()
    module.barrier = threading.Barrier(2)
    wrapper(x).sum().backward()


class Fails(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if x[0, 0] >= 1:
            raise KeyError(f"sample {x[0, 0].item()}")
        return super().forward(x)


def test_a_failure_is_raised_with_its_type_replica_and_traceback() -> None:
    wrapper = parallel(Fails(1, 1), 3)
    with pytest.raises(KeyError, match=r"sample 1\.0") as caught:
        wrapper(torch.tensor([[0.0], [1.0], [2.0]]))
    assert caught.value.__notes__ == ["raised in replica 1 on device cpu"]
    assert caught.traceback[-1].name == "forward"
    wrapper(torch.zeros(3, 1)).sum().backward()


def test_hooks_fire_once_on_the_wrapper_and_once_per_replica_inside() -> None:
    module, calls = perceptron(), []
    wrapper = parallel(module, 2)
    wrapper.register_forward_hook(lambda *_: calls.append("wrapper"))
    module[0].register_forward_hook(lambda *_: calls.append("inside"))
    module[0].weight.register_hook(lambda gradient: calls.append(tuple(gradient.shape)))
    wrapper(batch(4)).sum().backward()
    assert sorted(calls, key=str) == [(8, 6), "inside", "inside", "wrapper"]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("replicas", [1, 2, 4])
@pytest.mark.parametrize("route", ["loss", "wrapper"])
def test_losses_of_uneven_replicas_weigh_as_their_samples(
    reduction: Any, replicas: int, route: str
) -> None:
    module = Losses(reduction)
    x, y = batch(10), torch.ones(10, 4, dtype=F64)
    logits, loss = module(x, targets=y)
    (2.5 * loss).backward()
    expected = gradients(module)
    module.zero_grad()
    wrapper = parallel(module, replicas, loss_reduction=reduction)
    got = wrapper(x, targets=y)
    assert type(got) is list
    torch.testing.assert_close(got[0], logits)
    torch.testing.assert_close(got[1], loss, rtol=1e-12, atol=1e-12)
    if route == "loss":
        (2.5 * got[1]).backward()
    else:
        wrapper.backward(2.5)
    assert_same(gradients(module), expected)


def test_without_reduction_the_gradients_are_those_of_replica_zero() -> None:
    module, x = perceptron(), batch(4)
    wrapper = parallel(module, 2)
    with wrapper.without_reduction():
        loss = wrapper(x).sum()
    loss.backward()
    got = gradients(module)
    assert wrapper.meter.summed_backwards == wrapper.meter.reduced_bytes == 0
    module.zero_grad()
    module(x[:2]).sum().backward()
    assert_same(got, gradients(module))
    wrapper(x).sum().backward()
    assert wrapper.meter.summed_backwards == 1
    assert wrapper.meter.reduced_bytes == sum(p.nbytes for p in module.parameters())


def test_state_dicts_are_those_of_the_bare_module() -> None:
    module, other = perceptron(), perceptron()
    wrapper = parallel(module, 2)
    assert list(wrapper.state_dict()) == list(module.state_dict())
    assert [n for n, _ in wrapper.named_parameters()] == [n for n, _ in module.named_parameters()]
    assert [id(p) for p in wrapper.parameters()] == [id(p) for p in module.parameters()]
    with torch.no_grad():
        other[0].weight.add_(1)
    wrapper.load_state_dict({f"module.{k}": v for k, v in other.state_dict().items()})
    torch.testing.assert_close(wrapper(batch(5)), other(batch(5)))
    other.load_state_dict(wrapper.state_dict())
    outer = nn.ModuleDict({"module": module})
    parallel(outer, 2).load_state_dict(outer.state_dict())
    assert wrapper.module is wrapper.wrapped_module is module
    with pytest.raises(AttributeError):
        wrapper.in_features  # noqa: B018


def test_loading_is_all_or_nothing() -> None:
    module = perceptron()
    wrapper = parallel(module, 2)
    before = copy.deepcopy(module.state_dict())
    broken = {key: value + 1 for key, value in before.items() if key != "0.bias"}
    broken["2.bias"] = torch.zeros(9)
    broken["more"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match=r"(?s)0\.bias.*more.*2\.bias"):
        wrapper.load_state_dict(broken)
    with pytest.raises(ValueError, match="got assign=True"):
        wrapper.load_state_dict(before, assign=True)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_each_replica_is_called_once_for_each_batch() -> None:
    probe = Probe()
    wrapper = parallel(probe, 2)
    for part in batch(10).float().split(4):
        wrapper(part).sum().backward()
    first, second = "dpbench-replica-0_0", "dpbench-replica-1_0"
    assert sorted(probe.calls) == [(name, n) for name in (first, second) for n in (1, 2, 2)]


def test_importing_starts_no_thread_and_leaves_cuda_alone() -> None:
    code = (
        "import threading, torch, dpbench.parallel;"
        "print(threading.active_count(), torch.cuda.is_initialized())"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.stdout.split() == ["1", "False"]


def test_a_call_without_tensors_runs_one_replica() -> None:
    calls: list[str] = []
    module = nn.Identity()
    module.register_forward_hook(lambda _module, args, _output: calls.append(*args))
    assert parallel(module, 3)("x") == "x"
    assert calls == ["x"]


def test_wrong_places_and_arguments_are_refused_with_their_value() -> None:
    with pytest.raises(ValueError, match=r"'0\.weight' is on meta, expected it on cpu"):
        parallel(perceptron().to("meta"), 2)
    with pytest.raises(ValueError, match="loss_reduction='max'"):
        parallel(perceptron(), 2, loss_reduction="max")
    for number in (0, True, 1.5, "2"):
        with pytest.raises(ValueError, match=f"threads_per_replica={number!r}"):
            parallel(perceptron(), 2, threads_per_replica=number)
    with pytest.raises(ValueError, match="cuda:77"):
        parallel(perceptron(), 2, output_device="cuda:77")
    module = perceptron()
    wrapper = parallel(module, 2)
    module[2].bias = nn.Parameter(torch.zeros(4, dtype=F64, device="meta"))
    with pytest.raises(ValueError, match=r"'2\.bias' is on meta"):
        wrapper(batch(4))


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_copy_is_refused_and_says_what_to_copy(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="copy or save its module"):
        copied(parallel(perceptron(), 2))


def test_the_repr_names_devices_and_dimension() -> None:
    wrapper = parallel(perceptron(), 2, dim=1, cache=False)
    assert "devices=[cpu, cpu], output_device=cpu, dim=1, cache=False" in repr(wrapper)


def test_one_of_several_ranks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their replicas would train apart, and nobody would notice."""
    answers = {"is_initialized": True, "get_world_size": 2, "get_rank": 1}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.distributed, name, lambda answer=answer: answer)
    with pytest.raises(RuntimeError, match=r"rank 1 of 2.*use DistributedDataParallel"):
        DataParallel(nn.Linear(2, 2), ["cpu", "cpu"])
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    DataParallel(nn.Linear(2, 2), ["cpu", "cpu"])


X, Y = batch(10), torch.ones(10, 4, dtype=F64)


def test_backward_gives_the_reason_when_it_is_not_possible() -> None:
    wrapper = parallel(Losses(), 2)
    with pytest.raises(RuntimeError, match="no forward yet"):
        wrapper.backward()
    with torch.no_grad():
        wrapper(X, targets=Y)
    with pytest.raises(RuntimeError, match="no_grad"):
        wrapper.backward()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        wrapper(X[:, :5], targets=Y)
    with pytest.raises(RuntimeError, match="the last forward failed"):
        wrapper.backward()
    wrapper(X, targets=Y)
    for scale in (float("nan"), float("inf"), "1", True, None):
        with pytest.raises(ValueError, match=f"got scale={scale!r}"):
            wrapper.backward(scale)  # type: ignore[arg-type]
    wrapper.backward()
    with pytest.raises(RuntimeError, match="it has had its backward"):
        wrapper.backward()
    plain = parallel(perceptron(), 2)
    plain(X)
    with pytest.raises(RuntimeError, match="0 0-dim"):
        plain.backward()


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_two_routes_together_would_count_twice_and_are_refused(replicas: int) -> None:
    module = Losses()
    wrapper = parallel(module, replicas)
    [_, loss] = wrapper(X, targets=Y)
    loss.backward()
    once = gradients(module)
    with pytest.raises(RuntimeError, match="second time"):
        wrapper.backward()
    [_, loss] = wrapper(X, targets=Y)
    module.zero_grad()
    wrapper.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert_same(gradients(module), once)


@pytest.mark.parametrize("sizes", [(2, 2, 2, 2, 2), (4, 4, 2), (1, 9)])
def test_scaled_micro_batches_equal_the_large_batch(sizes: tuple[int, ...]) -> None:
    module = Losses()
    wrapper = parallel(module, 2)
    module(X, targets=Y)[1].backward()
    expected = gradients(module)
    for _ in range(2):
        module.zero_grad()
        for part, targets in zip(X.split(sizes), Y.split(sizes), strict=True):
            wrapper(part, targets=targets)
            wrapper.backward(scale=len(part) / len(X))
        assert_same(gradients(module), expected)
