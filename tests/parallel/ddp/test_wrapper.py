"""The wrapper around a module: what it refuses, sends, keeps and gives back.

torch's own communication hooks are run by tests/conformance.
"""

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
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.optim.swa_utils import update_bn

from dpbench.parallel import DistributedDataParallel as Ddp
from dpbench.parallel.ddp.buckets import assign_buckets
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
    one_step,
    perceptron,
    step,
)
from tests.parallel.ranks import World

world = World(backend="gloo")
Future = torch.futures.Future
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
EACH_KIND: list[dict[str, Any]] = [{}, {"find_unused_parameters": True}, {"static_graph": True}]
MEBIBYTES = "numbers of MiB above 0"
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"bucket_cap_mb": 0}, ValueError, MEBIBYTES),
    ({"bucket_cap_mb": float("nan")}, ValueError, MEBIBYTES),
    ({"bucket_cap_mb": float("inf")}, ValueError, MEBIBYTES),
    ({"bucket_cap_mb_list": []}, ValueError, MEBIBYTES),
    ({"bucket_cap_mb": 1, "bucket_cap_mb_list": [1]}, ValueError, "expected one of them"),
    ({"dim": 1}, ValueError, "got dim=1"),
    ({"device_ids": [0, 1]}, ValueError, r"got device_ids=\[0, 1\] .*start one process per GPU"),
    ({"device_ids": ["cpu"]}, ValueError, r"got device_ids=\['cpu'\]"),
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
def bad_arguments_and_functions_of_torchs_reducer_are_refused(rank: int) -> None:
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
    for name in ("_set_static_graph", "will_sync_module_buffers", "_remove_autograd_hooks"):
        with pytest.raises(NotImplementedError, match=rf"does not offer {name}\(\)"):
            getattr(Ddp(nn.Linear(2, 2)), name)()


def test_only_a_module_is_wrapped() -> None:
    with pytest.raises(TypeError, match=r"got a value of type int; expected a torch\.nn\.Module"):
        Ddp(3)  # type: ignore[arg-type]


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
    own_group = [dist.new_group([member]) for member in range(2)][rank]
    ddp, plain = Ddp(Branches(), process_group=own_group), Branches()
    for module in (ddp, plain):
        for use in ("ab", "abc"):  # nothing is checked
            module(batches(0)[rank], use).pow(2).mean().backward()
    assert_same(gradients(ddp), gradients(plain))
    assert ddp.reduced_bytes == 0


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


class Rescales(nn.Linear):
    """Divides by a buffer that each forward makes anew."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.register_buffer("scale", y.detach().abs().mean(0))
        return y / self.scale


@world.body
def autograd_notices_that_a_buffer_which_a_graph_has_saved_is_overwritten(rank: int) -> None:
    ddp = Ddp(Rescales(6, 3).double())
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
    begins_0, begins_1 = everywhere(begins)
    assert len(begins_0) == 3
    assert begins_0 == begins_1


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
        assert ddp.reduced_bytes == number * sum(p.nbytes for p in ddp.parameters())


@world.body
def without_overlap_everything_is_sent_at_the_end(rank: int) -> None:
    found = []
    for overlap in (True, False):
        sent: list[int] = []
        module = perceptron()
        ddp = Ddp(module, bucket_cap_mb=TINY, overlap=overlap)
        step(ddp, 0, rank)  # afterwards buckets are in the order of the gradients
        last = next(module.parameters())
        last.register_hook(lambda _, ddp=ddp, sent=sent: sent.append(ddp.reduced_bytes))
        before = ddp.reduced_bytes
        step(ddp, 0, rank)
        found.append((gradients(module), sent[0] - before, ddp.reduced_bytes - before))
    (during, early, all_of_them), (after, none, as_many) = found
    assert (early > 0, none, all_of_them) == (True, 0, as_many)
    assert_same(after, during, tolerance=0.0)


@world.body
def what_nobody_uses_keeps_its_gradient_bit_for_bit(rank: int) -> None:
    for width, as_view in product((4, 2048), (True, False)):  # wide gradients are copied singly
        options = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view}
        ddp = Ddp(Branches(width), **options)
        bias = ddp.module.b.bias
        bias.grad = torch.full_like(bias, 0.1 * (rank + 1))
        for _ in range(3):
            ddp(batches(0)[rank], "a").pow(2).mean().backward()
            assert torch.equal(bias.grad, torch.full_like(bias, 0.1 * (rank + 1)))
        ddp = Ddp(Branches(width), **options)
        step(ddp, 0, rank)
        kept = ddp.module.c.weight.grad.add_(rank).clone()  # in the bucket, as a view
        ddp(batches(0)[rank], "a").pow(2).mean().backward()
        assert torch.equal(ddp.module.c.weight.grad, kept)


@world.body
def use_is_only_read_where_a_parameter_is_not_used_here(rank: int) -> None:
    """To read it on a GPU would wait for all that was computed."""
    ddp = Ddp(Branches(), find_unused_parameters=True)
    read: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        nonzero = Tensor.nonzero
        patch.setattr(Tensor, "nonzero", lambda self: (read.append("flags"), nonzero(self))[1])
        ddp(batches(0)[rank]).sum().backward()
        assert read == []
        ddp(batches(0)[rank], "ab" if rank else "abc").sum().backward()
        assert read == ["flags"] * rank


@world.body
def an_unused_parameter_is_named_on_all_ranks(rank: int) -> None:
    for group, cap in product((None, dist.new_group(backend="shm")), (None, TINY)):
        for use in ("ab", "ab"), ("abc", "ac"), ("b", "abc"):
            options = {"bucket_cap_mb": cap, "gradient_as_bucket_view": cap is None}
            ddp = Ddp(Branches(2048), process_group=group, **options)
            ddp(batches(0)[rank], "abc").sum().backward()
            expected = "finished reduction in the prior iteration.*find_unused_parameters=True"
            with pytest.raises(RuntimeError, match=expected) as caught:  # noqa: PT012
                ddp(batches(0)[rank], use[rank]).sum().backward()
                ddp(batches(0)[rank], "abc").sum().backward()
            words = str(caught.value)
            for name in "abc":
                is_missing = name not in use[0] or name not in use[1]
                assert (f"{name}.weight" in words) == is_missing, words


def fails(gradient: Tensor) -> Tensor:
    raise ArithmeticError("of rank 1")


@world.body
def a_backward_that_fails_on_one_rank_is_an_error_on_all(rank: int) -> None:
    for options in EACH_KIND:
        ddp = Ddp(module := Branches(), bucket_cap_mb=TINY, **options)
        handle = module.a.weight.register_hook(fails if rank else lambda gradient: gradient)
        with pytest.raises(ArithmeticError if rank else RuntimeError):
            step(ddp, 0, rank)
        if rank:
            with pytest.raises(RuntimeError, match=r"receive grad for rank 1: 0 \(a\.weight\)$"):
                ddp(batches(0)[rank])
        handle.remove()
        if options == {"find_unused_parameters": True}:
            ddp.zero_grad()
            ddp(batches(0)[rank], "ab").sum().backward()
            assert module.c.weight.grad is None
        del ddp
        check_steps(perceptron, one_step, rank)


@world.body
def a_parameter_that_is_unfrozen_after_wrapping_is_an_error(rank: int) -> None:
    module = Branches()
    module.b.requires_grad_(False)
    ddp = Ddp(module)
    module.b.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"parameter 'b\.weight' was frozen .*wrap the mod"):
        ddp(batches(0)[rank])


@world.body
def others_take_it_and_its_state_dicts_for_those_of_torchs_class(rank: int) -> None:
    """Torch's distributed checkpoints leave the prefix out; Lightning asks for statistics."""
    module = perceptron(1)
    ddp, torch_ddp = Ddp(module), nn.parallel.DistributedDataParallel(perceptron(2))
    ddp.load_state_dict(torch_ddp.state_dict())
    assert digest(ddp) == digest(torch_ddp)
    ddp.load_state_dict(perceptron(3).state_dict())
    assert digest(module) == digest(perceptron(3))
    torch_ddp.load_state_dict(ddp.state_dict())
    assert digest(torch_ddp) == digest(ddp)
    assert ddp.module is module
    sgd = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    step(ddp, 0, rank)
    sgd.step()
    model, optimizer = get_state_dict(ddp, sgd)
    assert list(model) == list(perceptron().state_dict())
    assert "0.weight" in optimizer["state"]
    assert ddp._get_ddp_logging_data().get("can_set_static_graph") is None  # noqa: SLF001
    names = ("device_ids", "output_device", "device", "broadcast_buffers", "modules_buffers")
    for name in (*names, "join_device"):
        assert getattr(ddp, name) == getattr(torch_ddp, name), name


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
        plain = perceptron()
        for trained in (module, plain):
            trained.zero_grad()
            step(trained, 0, rank)
        assert_same(gradients(module), gradients(plain))


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
def a_hook_gets_the_buckets_in_order_and_may_change_their_dtype(rank: int) -> None:
    def average(state: list[object], bucket: dist.GradBucket) -> Future[Tensor]:
        sizes = [p.numel() for p in bucket.parameters()]
        assert [g.numel() for g in bucket.gradients()] == sizes
        assert bucket.buffer().numel() == sum(sizes)
        state.append((bucket.index(), bucket.is_last(), sizes))
        return default_hooks.allreduce_hook(None, bucket)

    ddp, seen = Ddp(perceptron(), bucket_cap_mb=TINY), []
    ddp.register_comm_hook(seen, average)
    step(ddp, 0, rank)
    assert_same(gradients(ddp), mean_gradients(perceptron))
    assert seen == [(0, False, [4]), (1, False, [32]), (2, False, [8]), (3, True, [48])]
    with pytest.raises(RuntimeError, match="can only be called once"):
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    sparse = Ddp(nn.Embedding(2, 1, sparse=True))
    sparse.register_comm_hook(seen, average)  # it has nothing to do
    sparse(torch.tensor([rank])).sum().backward()
    assert sparse.module.weight.grad.to_dense().tolist() == [[0.5], [0.5]]
    assert len(seen) == 4
    halved, hook = Ddp(perceptron()), default_hooks.allreduce_hook
    halved.register_comm_hook(None, default_hooks.fp16_compress_wrapper(hook))
    step(halved, 0, rank)
    assert_same(gradients(halved), mean_gradients(perceptron), tolerance=1e-3)


@world.body
def a_failing_hook_raises_where_it_fails(rank: int) -> None:
    def fails_now(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        raise ArithmeticError(f"from bucket {bucket.index()}")

    def no_future(state: object, bucket: dist.GradBucket) -> None: ...

    def fails_later(state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        def divide(future: Future[Any]) -> Tensor:
            raise ArithmeticError("from the future of bucket 0")

        return default_hooks.allreduce_hook(None, bucket).then(divide)

    for hook, kind, words in (
        (fails_later, Exception, "from the future of bucket 0"),
        (fails_now, ArithmeticError, "from bucket 0"),
        (no_future, RuntimeError, "must return a torch.futures.Future object, but got NoneType"),
    ):
        ddp = Ddp(perceptron())
        ddp.register_comm_hook(None, hook)
        with pytest.raises(kind, match=words):
            step(ddp, 0, rank)
        del ddp
        assert everywhere(rank) == [0, 1]
    check_steps(perceptron, one_step, rank)


@given(
    kinds=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(DTYPES)), min_size=1, max_size=12),
    caps=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    random=st.randoms(use_true_random=False),
)
def test_a_bucket_is_closed_by_the_parameter_that_reaches_its_cap(kinds, caps, random) -> None:
    parameters = [torch.empty(size, dtype=dtype, device="meta") for size, dtype in kinds]
    order = random.sample(range(len(parameters)), len(parameters))
    buckets = assign_buckets(order, parameters, caps)
    for dtype in DTYPES:
        own = [b for b in buckets if parameters[b[0]].dtype == dtype]
        # Each parameter is in one bucket of its dtype, in order.
        expected = [index for index in order if parameters[index].dtype == dtype]
        assert [index for bucket in own for index in bucket] == expected
        for number, bucket in enumerate(own):
            sizes = [parameters[index].nbytes for index in bucket]
            cap = caps[min(number, len(caps) - 1)]  # the last holds for all further buckets
            assert sum(sizes[:-1]) < cap
            assert number == len(own) - 1 or sum(sizes) >= cap


test_on_ranks = world.test()
