"""Which of torch's tests of collectives are run with the backend shm.

They call each collective that shm has, in each way that training calls it: on the world and on
groups of some ranks, synchronous and asynchronous, with objects and complex numbers.
Tests that ask for GPUs get the CPU.
"""

from __future__ import annotations

RANKS = 4
NAMES = (
    "test_all_gather",
    "test_all_gather_complex",
    "test_all_gather_full_group",
    "test_all_gather_into_cat_tensor_cuda",
    "test_all_gather_into_stack_tensor_cuda",
    "test_all_gather_object_subgroup",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_full_group_sum",
    "test_all_reduce_max",
    "test_all_reduce_product",
    "test_all_reduce_sum",
    "test_all_reduce_sum_async",
    "test_all_reduce_sum_complex",
    "test_barrier_full_group",
    "test_barrier_timeout_full_group",
    "test_broadcast",
    "test_destroy_group",
    "test_gather",
    "test_gather_object",
    "test_get_future",
    "test_new_subgroups",
    "test_reduce_scatter_tensor_cuda",
)
