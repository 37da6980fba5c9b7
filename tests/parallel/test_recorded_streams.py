"""The stand-in for torch.cuda knows what a GPU would have to wait for."""

from __future__ import annotations

import torch

from tests.parallel.recorded_streams import RecordedCuda


def test_a_stream_keeps_its_order_and_two_streams_keep_none() -> None:
    cuda = RecordedCuda()
    tensor = cuda.tensor(torch.ones(3))
    tensor.add_(1)
    tensor.mul_(2)
    with cuda.stream(cuda.Stream()):
        tensor.sub_(1)
    add, multiply, subtract = (cuda.only(name) for name in ("add_", "mul_", "sub_"))
    assert cuda.precedes(add, multiply)
    assert not cuda.precedes(multiply, add)
    assert not cuda.precedes(multiply, subtract)
    assert torch.equal(torch.as_tensor(tensor).as_subclass(torch.Tensor), torch.full((3,), 3.0))


def test_an_event_makes_a_stream_wait_for_what_came_before_it_only() -> None:
    cuda = RecordedCuda()
    first = cuda.launch("first")
    event = cuda.current_stream().record_event()
    second = cuda.launch("second")
    other = cuda.Stream(device=1)
    other.wait_event(event)
    with cuda.stream(other):
        then = cuda.launch("then")
    assert cuda.precedes(first, then)
    assert not cuda.precedes(second, then)
    assert then.where == "stream 1 of cuda:1"


def test_the_host_passes_on_what_it_has_waited_for() -> None:
    cuda = RecordedCuda()
    first = cuda.launch("first")
    event = cuda.Event()
    event.record()
    with cuda.stream(cuda.Stream()):
        before = cuda.launch("before")
        cuda.is_done = False
        assert not event.query()
        still = cuda.launch("still")
        event.synchronize()
        after = cuda.launch("after")
    assert not cuda.precedes(first, before)
    assert not cuda.precedes(first, still)
    assert cuda.precedes(first, after)


def test_copies_are_named_by_their_direction_and_views_are_no_actions() -> None:
    cuda = RecordedCuda()
    tensor, host = cuda.tensor(torch.ones(4), "cuda:1"), torch.zeros(4)
    host.view(2, 2).copy_(tensor.view(2, 2), non_blocking=True)
    tensor[:2].copy_(host[:2])
    tensor.view(2, 2)[0].copy_(tensor.view(2, 2)[1])
    torch._foreach_copy_([tensor[:1]], [host[:1]])
    assert tensor.is_cuda
    assert tensor.view(2, 2).device == torch.device("cuda:1")
    assert [action.name for action in cuda.actions] == [
        "to host",
        "to device",
        "on device",
        "to device",
    ]
    assert {action.where for action in cuda.actions} == {"default stream of cuda:1"}
