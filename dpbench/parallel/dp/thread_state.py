"""The torch settings of the calling thread that a worker thread has to share.

A new thread starts with gradients enabled and autocast off, whatever its creator has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch

from dpbench.parallel.dp.random_streams import saved_tensors_hooks


def carry_thread_state(
    devices: Iterable[torch.device],
) -> Callable[[torch.device], AbstractContextManager[None]]:
    """Capture grad mode, inference mode, autocast, saved-tensors hooks and CUDA streams of the
    calling thread.

    Args:
        devices: the devices the workers will use.

    Returns:
        A function that gives, for one of the devices, a context to enter in its worker.
    """
    used = set(devices)
    gradients = torch.is_grad_enabled()
    inference = torch.is_inference_mode_enabled()
    cache = torch.is_autocast_cache_enabled()
    autocast = {
        kind: torch.get_autocast_dtype(kind)
        for kind in {"cpu"} | {device.type for device in used}
        if torch.is_autocast_enabled(kind)
    }
    hooks = saved_tensors_hooks()
    streams = {d: torch.cuda.current_stream(d) for d in used if d.type == "cuda"}

    @contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(gradients))
            for kind, dtype in autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=cache))
            if hooks is not None:
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*hooks))
            # Entering a stream also makes its device the current one.
            stream = streams.get(device)
            stack.enter_context(torch.cuda.stream(stream) if stream else contextlib.nullcontext())
            yield

    return entered
