"""The wrapper around a module: what it refuses, sends, keeps and gives back."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from itertools import pairwise, product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.optim.swa_utils import update_bn

from dpbench.parallel import DistributedDataParallel as Ddp
from tests.parallel.ddp.one_process import (
    TINY,
    Branches,
    assert_same,
    batches,
    check_steps,
    digest,
    everywhere,
    gradients,
    mean_gradients,
    perceptron,
    step,
)
from tests.parallel.worlds import World

world = World(backend="gloo")
EACH_KIND: list[dict[str, Any]] = [{}, {"find_unused_parameters": True}, {"static_graph": True}]
MEBIBYTES = "numbers of MiB above 0"
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"bucket_cap_mb": 0}, ValueError, MEBIBYTES),
    ({"bucket_cap_mb": float("nan")}, ValueError, MEBIBYTES),
    ({"bucket_cap_mb_list": []}, ValueError, MEBIBYTES),
    ({"bucket_cap_mb": 1, "bucket_cap_mb_list": [1]}, ValueError, "expected one of them"),
    ({"dim": 1}, ValueError, "got dim=1"),
    ({"device_ids": [0, 1]}, ValueError, r"single element, but got \[0, 1\]; start one process"),
    ({"device_ids": ["cpu"]}, ValueError, r"got device_ids \['cpu'\]"),
    ({"mixed_precision": "bf16"}, ValueError, "got mixed_precision='bf16'.*not offer"),
    ({"first_bucket_cap_mb": 1}, TypeError, "unexpected keyword argument 'first_bucket_cap_mb'"),
]


class Nested(nn.Module):
    """Buffers of several dtypes and shapes below the top."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)).double()
        self.register_buffer("flag", torch.tensor([seed > 0, True]))
        self.register_buffer("narrow", torch.full((3,), float(seed), dtype=torch.bfloat16))
        self.register_buffer("strided", torch.full((2, 3), float(seed)).t())
        self.frozen = nn.Parameter(torch.randn(2), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


@world.body
def bad_arguments_are_refused(rank: int) -> None:
    for arguments, kind, words in BAD:
        with pytest.raises(kind, match=words):
            Ddp(nn.Linear(2, 2), **arguments)
    with pytest.raises(RuntimeError, match="doesn't have any parameter"):
        Ddp(nn.Linear(2, 2).requires_grad_(False))
    for lazy in nn.LazyLinear(2), nn.Sequential(perceptron(), nn.LazyBatchNorm1d(affine=False)):
        with pytest.raises(RuntimeError, match="uninitialized parameters can't be used with `Dis"):
            Ddp(lazy)
    with pytest.raises(RuntimeError, match="static_graph"):
        Ddp(nn.Linear(2, 2), static_graph=rank == 1)


def test_without_a_process_group_it_refuses() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        Ddp(nn.Linear(2, 2))


@world.body
def makes_all_ranks_equal(rank: int) -> None:
    module = Nested(seed=rank)
    kept = list(module.parameters())
    Ddp(module)
    assert all(a is b for a, b in zip(module.parameters(), kept, strict=True))
    assert len(set(everywhere(digest(module)))) == 1
    assert not module.flag[0]


@world.body
def averages_inputs_one_and_two_to_one_and_a_half(rank: int) -> None:
    for group in (None, dist.new_group(backend="shm")):
        ddp = Ddp(nn.Linear(1, 1, bias=False), process_group=group)
        ddp(torch.tensor([[rank + 1.0]])).sum().backward()
        assert ddp.module.weight.grad.item() == 1.5


@world.body
def a_group_of_one_reduces_nothing(rank: int) -> None:
    alone = [dist.new_group([member]) for member in range(2)][rank]
    ddp, plain = Ddp(Branches(), process_group=alone), Branches()
    for module in (ddp, plain):
        for use in ("ab", "abc"):  # nothing is checked
            module(batches(0)[rank], use).pow(2).mean().backward()
    assert_same(gradients(ddp), gradients(plain))
    assert (ddp.collectives, ddp.reduced_bytes) == (0, 0)


@world.body
def sends_nested_buffers_in_training_only(rank: int) -> None:
    module = Nested()
    ddp = Ddp(module)
    norm = module.norm[1]
    losses = [ddp(batches(seed)[rank]).pow(2).mean() for seed in range(2)]
    means = everywhere(norm.running_mean.tolist())
    assert means[0] != means[1]  # of the last batch, which rank 0 will send next
    sum(losses).backward()  # although the buffers were written in between
    with ddp.no_sync():
        step(ddp, 1, rank)
    sent = ddp.broadcast_bytes
    if rank == 0:  # neither a mode nor eval is a collective
        ddp.eval()
        assert not module.training
        ddp(batches(2)[rank])
        ddp.train()
    step(ddp, 1, rank)  # nothing was reduced before it
    assert ddp.broadcast_bytes == sent > 0
    before = everywhere(norm.running_mean.tolist())[0]
    x = batches(3)[0]
    module.narrow = torch.full((5,), float(rank + 7))  # users replace buffers
    module.register_buffer("late", torch.full((3,), float(rank + 1)))
    ddp(x)
    after = 0.9 * torch.tensor(before, dtype=torch.float64) + 0.1 * module.norm[0](x).mean(0)
    assert torch.allclose(norm.running_mean, after, rtol=1e-12, atol=1e-12)
    assert len(set(everywhere(norm.num_batches_tracked.item()))) == 1
    assert (module.narrow.tolist(), module.late.tolist()) == ([7.0] * 5, [1.0] * 3)


class Rescales(nn.Module):
    """It divides by a buffer that each forward makes anew, or writes to."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3).double()
        self.in_place = in_place
        self.register_buffer("scale", torch.ones(3).double())

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        scale = y.detach().abs().mean(0)
        self.scale = self.scale.copy_(scale) if self.in_place else scale
        return y / self.scale


@world.body
def autograd_notices_that_a_buffer_which_a_graph_has_saved_is_overwritten(rank: int) -> None:
    for in_place in (False, True):
        ddp = Ddp(Rescales(in_place=in_place))
        for seed in range(2):
            step(ddp, seed, rank)  # a backward after each forward is no problem
        losses = [ddp(batches(seed)[rank]).pow(2).mean() for seed in range(2)]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            sum(losses).backward()


@world.body
def a_forward_without_gradients_begins_with_equal_buffers(rank: int) -> None:
    ddp = Ddp(Nested())
    begins = []
    norm = ddp.module.norm[1]
    norm.register_forward_pre_hook(lambda *_: begins.append(norm.running_mean.tolist()))
    update_bn([batches(seed)[rank] for seed in range(3)], ddp)
    mine, theirs = everywhere(begins)
    assert len(mine) == 3
    assert mine == theirs


@world.body
def sends_no_buffers_where_told_so(rank: int) -> None:
    never = Ddp(Nested(seed=rank), broadcast_buffers=False)
    assert bool(never.module.flag[0]) == (rank == 1)
    once = Ddp(Nested(seed=rank), forward_sync_buffers=False)
    assert not once.module.flag[0]
    for ddp in (never, once):
        step(ddp, 0, rank)
    assert never.broadcast_bytes == once.broadcast_bytes == 0


@world.body
def a_stretch_without_sync_is_reduced_as_a_whole(rank: int) -> None:
    ddp = Ddp(perceptron())
    for number in range(1, 3):
        with ddp.no_sync():
            for seed in range(3):
                step(ddp, seed, rank)
        step(ddp, 3, rank)
        assert ddp.collectives == number


@world.body
def without_overlap_everything_is_sent_at_the_end(rank: int) -> None:
    found = []
    for overlap in (True, False):
        sent: list[int] = []
        module = perceptron()
        ddp = Ddp(module, bucket_cap_mb=TINY, overlap=overlap)
        step(ddp, 0, rank)  # afterwards buckets are in the order of the gradients
        last = next(module.parameters())
        last.register_hook(lambda _, ddp=ddp, sent=sent: sent.append(ddp.collectives))
        before = ddp.collectives
        step(ddp, 0, rank)
        found.append((gradients(module), sent[0] - before, ddp.collectives - before))
    (during, early, all_of_them), (after, none, as_many) = found
    assert (early > 0, none, all_of_them) == (True, 0, as_many)
    assert_same(after, during, tolerance=0.0)


class Twins(nn.Module):
    """Two outputs, of layers whose gradients are so large that each is copied by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.b(x)


@world.body
def what_nobody_uses_keeps_its_gradient_bit_for_bit(rank: int) -> None:
    for as_view in (True, False):
        options = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
        for make, run in (
            (Branches, lambda ddp: ddp(batches(0)[rank], "a").pow(2).mean()),
            (Twins, lambda ddp: ddp(torch.ones(1, 256))[0].sum()),
        ):
            ddp = Ddp(make(), **options)
            bias = ddp.module.b.bias
            bias.grad = old = torch.full_like(bias, 0.1 * (rank + 1)).clone()
            for _ in range(3):
                run(ddp).backward()
                assert torch.equal(bias.grad, torch.full_like(old, 0.1 * (rank + 1)))
        ddp = Ddp(Branches(), **options)
        step(ddp, 0, rank)
        kept = ddp.module.c.weight.grad.add_(rank).clone()  # in the bucket, as a view
        ddp(batches(0)[rank], "a").pow(2).mean().backward()
        assert torch.equal(ddp.module.c.weight.grad, kept)


@world.body
def an_unused_parameter_is_named_on_all_ranks(rank: int) -> None:
    for group, cap in product((None, dist.new_group(backend="shm")), (None, TINY)):
        for use in ("ab", "ab"), ("abc", "ac"), ("b", "abc"):
            ddp = Ddp(Branches(), bucket_cap_mb=cap, process_group=group)
            ddp(batches(0)[rank], "abc").sum().backward()
            with pytest.raises(RuntimeError) as caught:  # noqa: PT012
                ddp(batches(0)[rank], use[rank]).sum().backward()
                ddp(batches(0)[rank], "abc").sum().backward()
            words = str(caught.value)
            assert "finished reduction in the prior iteration" in words
            assert "find_unused_parameters=True" in words
            for name in "abc":
                is_missing = name not in use[0] or name not in use[1]
                assert (f"{name}.weight" in words) == is_missing, words


def fails(gradient: Tensor) -> Tensor:
    raise ArithmeticError("of rank 1")


@world.body
def a_backward_that_fails_on_one_rank_is_an_error_on_all(rank: int) -> None:
    for options in EACH_KIND:
        module = perceptron()
        ddp = Ddp(module, bucket_cap_mb=TINY, **options)
        step(ddp, 0, rank)
        handle = module[0].weight.register_hook(fails if rank else lambda gradient: gradient)
        with pytest.raises(ArithmeticError if rank else RuntimeError):
            step(ddp, 0, rank)
        if rank:
            with pytest.raises(RuntimeError, match="finished reduction"):
                ddp(batches(0)[rank])
        handle.remove()
        del ddp
        check_steps(perceptron, lambda m, r: step(m, 0, r), rank)


@world.body
def a_parameter_that_is_unfrozen_after_wrapping_is_an_error(rank: int) -> None:
    module = Branches()
    module.b.requires_grad_(False)
    ddp = Ddp(module)
    module.b.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"parameter 'b\.weight' was frozen .*wrap the mod"):
        ddp(batches(0)[rank])


@world.body
def exchanges_state_dicts_with_torch(rank: int) -> None:
    module = perceptron(1)
    ddp = Ddp(module)
    theirs = nn.parallel.DistributedDataParallel(perceptron(2))
    ddp.load_state_dict(theirs.state_dict())
    assert digest(ddp) == digest(theirs)
    ddp.load_state_dict(perceptron(3).state_dict())
    assert digest(module) == digest(perceptron(3))
    theirs.load_state_dict(ddp.state_dict())
    assert digest(theirs) == digest(ddp)
    assert ddp.module is module


@world.body
def copies_go_on_training(rank: int) -> None:
    for options in EACH_KIND:
        ddp = Ddp(perceptron(), bucket_cap_mb=TINY, **options)
        step(ddp, 0, rank)
        for wrapped in (ddp, copy.deepcopy(ddp)):
            for _ in range(2):
                wrapped.zero_grad()
                step(wrapped, 0, rank)
                assert_same(gradients(wrapped), mean_gradients(perceptron))
    with pytest.raises(RuntimeError, match="default process group"):
        pickle.dumps(Ddp(perceptron(), process_group=dist.new_group([0, 1])))


@world.body
def others_treat_it_as_torchs_class(rank: int) -> None:
    """Torch's distributed checkpoints leave the prefix out; Lightning asks for statistics."""
    ddp = Ddp(perceptron())
    sgd = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    step(ddp, 0, rank)
    sgd.step()
    model, optimizer = get_state_dict(ddp, sgd)
    assert list(model) == list(perceptron().state_dict())
    assert "0.weight" in optimizer["state"]
    assert ddp._get_ddp_logging_data().get("can_set_static_graph") is None  # noqa: SLF001
    theirs = nn.parallel.DistributedDataParallel(perceptron())
    for name in (
        *("device_ids", "output_device", "device", "broadcast_buffers"),
        *("modules_buffers", "join_device"),
    ):
        assert getattr(ddp, name) == getattr(theirs, name), name


@world.body
def hooks_and_buckets_go_with_the_wrapper(rank: int) -> None:
    module = perceptron()
    for group in (None, dist.new_group(backend="shm")):
        ddp = Ddp(module, process_group=group)
        step(ddp, 0, rank)
        alive = weakref.ref(ddp)
        gc.disable()
        del ddp
        assert alive() is None
        gc.enable()
        alone = perceptron()
        for one in (module, alone):
            one.zero_grad()
            step(one, 0, rank)
        assert_same(gradients(module), gradients(alone))


@world.body
def a_compiled_graph_is_divided_where_buckets_end(rank: int) -> None:
    """Otherwise its backward would have all gradients at its end, and overlap nothing."""

    def layers() -> nn.Sequential:
        torch.manual_seed(0)
        sizes = [6, *[420] * 4, 4]  # 1.3 MiB a layer: the first bucket closes at 1 MiB
        return nn.Sequential(*(nn.Linear(a, b).double() for a, b in pairwise(sizes)))

    graphs: list[torch.fx.GraphModule] = []

    def counting(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    ddp = Ddp(torch.compile(layers(), backend=counting), bucket_cap_mb=1)
    step(ddp, 0, rank)
    assert len(graphs) >= 4
    got = {name.removeprefix("_orig_mod."): grad for name, grad in gradients(ddp).items()}
    assert_same(got, mean_gradients(layers))
    inside = len(graphs)
    torch.compile(layers(), backend=counting)(torch.ones(2, 6).double())
    assert len(graphs) == inside + 1, "outside of ddp nothing is divided"


@world.body_on(2, 3)
def a_rank_may_have_no_batch_at_all(rank: int) -> None:
    """It makes its buckets when the others do."""
    for options in EACH_KIND:
        ddp = Ddp(perceptron(), bucket_cap_mb=TINY, **options)
        with ddp.join():
            for seed in range(3 if rank == 0 else 0):
                ddp.zero_grad()
                step(ddp, seed, rank)
        assert len(set(everywhere(digest(ddp)))) == 1


@world.body
def functions_that_work_on_torchs_reducer_say_that_they_are_not_offered(rank: int) -> None:
    ddp = Ddp(perceptron())
    for name in ("_set_static_graph", "will_sync_module_buffers", "_remove_autograd_hooks"):
        with pytest.raises(NotImplementedError, match=rf"does not offer {name}\(\)"):
            getattr(ddp, name)()


test_on_ranks = world.test()
