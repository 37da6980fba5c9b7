"""Every gradient is in one bucket, of its own dtype, in the order in which gradients get ready."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbench.parallel.ddp.buckets import assign_buckets

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


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
