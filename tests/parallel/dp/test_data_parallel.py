from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from dpbench.parallel import DataParallel
from tests.parallel.ddp.one_process import Checkpointed, assert_same, gradients, perceptron
from tests.parallel.dp.modules import F64, Losses, batch, check_like_alone, parallel, square_mean

X, Y = batch(10), torch.ones(10, 4, dtype=F64)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [1, 2, 5, 8, 10])
def test_gradients_are_those_of_the_module_alone(replicas: int, size: int) -> None:
    check_like_alone(perceptron(), replicas, lambda module: square_mean(module, size))


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_outputs_in_evaluation_mode_are_those_of_the_module_alone(replicas: int) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4))
    module = module.to(F64).eval()
    for x in (batch(size) for size in (1, 3, 8, 10)):
        torch.testing.assert_close(parallel(module, replicas)(x), module(x))


def test_a_batch_dimension_that_is_not_there_is_refused_before_a_replica_runs() -> None:
    module = nn.Sequential(Probe())
    with pytest.raises(IndexError, match=r"cannot split dim 2 of a tensor of shape \(4, 6\)"):
        parallel(module, 2, dim=2)(batch(4))
    with pytest.raises(ValueError, match=r"disagree on the size of dim 0: \[4, 5\]"):
        parallel(module, 2)(batch(4), batch(5))
    assert module[0].calls == []


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


class Probe(nn.Linear):
    """Reports its calls: thread, samples, number of torch's threads, and modes of autograd."""

    def __init__(self) -> None:
        super().__init__(6, 4)
        self.calls: list[tuple[Any, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        modes = (*modes, torch.is_autocast_enabled("cpu"))
        thread = threading.current_thread().name
        self.calls.append((thread, len(x), torch.get_num_threads(), modes))
        return super().forward(x)


def test_each_replica_runs_once_for_each_batch_in_the_modes_of_the_caller() -> None:
    probe, x = Probe(), torch.randn(4, 6)
    threads = torch.get_num_threads()
    torch.set_num_threads(6)
    wrapper = parallel(probe, 2)
    with torch.no_grad():
        assert not wrapper(x).requires_grad
    with torch.inference_mode():
        assert wrapper(x).is_inference()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert wrapper(x).dtype is torch.bfloat16
    wrapper(x).sum().backward()
    names = ("dpbench-replica-0_0", "dpbench-replica-1_0")
    modes = [(False, False, False), (False, True, False), (True, False, False), (True, False, True)]
    assert sorted(probe.calls) == [(name, 2, 3, mode) for name in names for mode in modes]
    assert torch.get_num_threads() == 6
    torch.set_num_threads(threads)


def test_replicas_run_at_the_same_time_after_the_first_step() -> None:
    module, x = nn.Linear(6, 4, dtype=F64), batch(4)
    wrapper = parallel(module, 2)
    wrapper(x).sum().backward()
    barrier = threading.Barrier(2)

    def meet(*_: object) -> None:
        barrier.wait(timeout=30)

    module.register_forward_hook(meet)
    module.register_forward_hook(lambda _module, _args, output: output.register_hook(meet) and None)
    wrapper(x).sum().backward()


def test_a_failure_is_raised_with_its_type_replica_and_traceback() -> None:
    def fails(module: nn.Module, args: tuple[Tensor]) -> None:
        if args[0][0, 0] >= 1:
            raise KeyError(f"sample {args[0][0, 0].item()}")

    module = nn.Linear(1, 1)
    module.register_forward_pre_hook(fails)
    wrapper = parallel(module, 3)
    with pytest.raises(KeyError, match=r"sample 1\.0") as caught:
        wrapper(torch.tensor([[0.0], [1.0], [2.0]]))
    assert caught.value.__notes__ == ["raised in replica 1 on device cpu"]
    assert caught.traceback[-1].name == "fails"
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
    module, plain = Losses(reduction), Losses(reduction)
    x, same = batch(10).requires_grad_(), batch(10).requires_grad_()
    logits, loss = plain(same, targets=Y)
    (2.5 * loss).backward()
    wrapper = parallel(module, replicas, loss_reduction=reduction)
    got = wrapper(x, targets=Y)
    assert type(got) is list
    torch.testing.assert_close(got[0], logits)
    torch.testing.assert_close(got[1], loss, rtol=1e-12, atol=1e-12)
    if route == "loss":
        (2.5 * got[1]).backward()
    else:
        wrapper.backward(2.5)
    assert_same({"x": x.grad, **gradients(module)}, {"x": same.grad, **gradients(plain)})


def test_unsynced_the_gradients_are_those_of_replica_zero() -> None:
    """The wrapper notes the phases of its steps, and counts what they reduce."""
    module, x = perceptron(), batch(4)
    wrapper = parallel(module, 2)
    with wrapper.unsynced():
        loss = wrapper(x).sum()
    loss.backward()
    got = gradients(module)
    assert wrapper.reduced_bytes == 0
    module.zero_grad()
    module(x[:2]).sum().backward()
    assert_same(got, gradients(module))
    with wrapper.clock.running(lambda: 0.0) as marks:
        wrapper(x).sum().backward()
    forward = ("scatter", "replicate", "compute", "gather", None)
    assert [phase for phase, _ in marks] == [*forward, "compute", "reduce", None]
    assert wrapper.reduced_bytes == sum(p.nbytes for p in module.parameters())


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


def test_wrong_places_arguments_and_copies_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'0\.weight' is on meta, expected it on cpu"):
        parallel(perceptron().to("meta"), 2)
    with pytest.raises(ValueError, match="loss_reduction='max'"):
        parallel(perceptron(), 2, loss_reduction="max")
    with pytest.raises(ValueError, match="cuda:77"):
        parallel(perceptron(), 2, output_device="cuda:77")
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="copy or save its module"):
            copied(parallel(perceptron(), 2))
    module = perceptron()
    wrapper = parallel(module, 2)
    module[2].bias = nn.Parameter(torch.zeros(4, dtype=F64, device="meta"))
    with pytest.raises(ValueError, match=r"'2\.bias' is on meta"):
        wrapper(batch(4))


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
    plain, module = Losses(), Losses()
    wrapper = parallel(module, 2)
    plain(X, targets=Y)[1].backward()
    expected = gradients(plain)
    for set_to_none in (False, False, True):
        wrapper.zero_grad(set_to_none=set_to_none)
        for part, targets in zip(X.split(sizes), Y.split(sizes), strict=True):
            wrapper(part, targets=targets)
            wrapper.backward(scale=len(part) / len(X))
        assert_same(gradients(module), expected)


def test_second_derivatives_and_checkpoints_around_the_wrapper_are_refused() -> None:
    wrapper, x = parallel(perceptron(), 2), batch(4).requires_grad_()
    with pytest.raises(RuntimeError, match=r"got create_graph=True.*call its module instead"):
        torch.autograd.grad(wrapper(x).sum(), [x], create_graph=True)
    with pytest.raises(RuntimeError, match="use them on parts of its module instead"):
        checkpoint(wrapper, x, use_reentrant=False).sum().backward()


class Sharing(nn.Module):
    """Reaches its layer by ways on which a replica finds the original."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6, dtype=F64)
        self.layer.register_forward_hook(self.scaled)
        self.ordered = OrderedDict(layer=self.layer)
        self.found = {self.layer}

    def scaled(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output * self.layer.bias.sum()

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.layer, self.ordered["layer"], *self.found):
            x = layer(x).tanh()
        return x


@pytest.mark.parametrize("make", [Checkpointed, Sharing])
def test_checkpoints_inside_and_parts_shared_with_the_original_work(make: type[nn.Module]) -> None:
    check_like_alone(make(), 2)


def test_sparse_gradients_stay_sparse() -> None:
    module = nn.EmbeddingBag(10, 3, sparse=True, mode="sum", dtype=F64)
    words = torch.arange(12).view(6, 2) % 10
    check_like_alone(module, 2, lambda one: one(words).pow(2).sum())
    assert module.weight.grad.is_sparse


def test_a_step_leaves_nothing_for_the_garbage_collector() -> None:
    module = perceptron()
    wrapper = parallel(module, 2)

    def step() -> None:
        square_mean(wrapper).backward()
        torch.autograd.grad(square_mean(wrapper), [module[0].weight])
        module.zero_grad()

    step()
    gc.collect()
    gc.disable()
    try:
        step()
        assert gc.collect() == 0
    finally:
        gc.enable()


class Deep(nn.Sequential):
    """Notes at the backward of the first layer how many saved tensors are alive."""

    alive: ClassVar[list[int]] = []

    def forward(self, x: Tensor) -> Tensor:
        saved: weakref.WeakSet[Tensor] = weakref.WeakSet()

        def pack(tensor: Tensor) -> Tensor:
            saved.add(kept := tensor.detach())
            return kept

        with saved_tensors_hooks(pack, lambda kept: kept):
            for layer in self:
                x = layer(x).tanh()
                if layer is self[0]:
                    x.register_hook(lambda _: self.alive.append(len(saved)))
        return x


def test_activations_are_freed_as_the_backward_goes() -> None:
    module = Deep(*(nn.Linear(6, 6, dtype=F64) for _ in range(10)))
    module(batch(4)).sum().backward()
    saved_by_plain = module.alive.pop()
    wrapper = parallel(module, 2)
    wrapper(batch(4)).sum().backward()
    assert module.alive == [saved_by_plain, saved_by_plain]


@pytest.mark.parametrize("retain_graph", [False, True])
def test_a_graph_has_no_second_backward(retain_graph: bool) -> None:
    loss = square_mean(parallel(perceptron(), 2))
    loss.backward(retain_graph=retain_graph)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
