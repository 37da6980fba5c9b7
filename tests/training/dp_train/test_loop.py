from __future__ import annotations

from itertools import islice

import torch
from hypothesis import given
from hypothesis import strategies as st

from dpbench.training.dp_train.loop import round_robin


@given(replicas=st.integers(1, 6), batch=st.integers(1, 3), data=st.data(), seed=st.integers(0, 99))
def test_steps_have_no_sample_twice_and_passes_have_each_once(
    replicas: int, batch: int, data: st.DataObject, seed: int
) -> None:
    samples = data.draw(st.integers(replicas * batch, 40))
    generator = torch.Generator().manual_seed(seed)
    steps = list(islice(round_robin(samples, replicas, batch, generator), 3 * samples))
    dealt = []
    for step in steps:
        assert [len(mine) for mine in step] == [batch] * replicas
        order = [step[i % replicas][i // replicas] for i in range(replicas * batch)]
        assert len(set(order)) == len(order)
        dealt += order
    for start in range(0, len(dealt) - samples + 1, samples):
        assert sorted(dealt[start : start + samples]) == list(range(samples))


def test_passes_are_shuffled_differently_and_the_seed_repeats_them() -> None:
    def order(seed: int) -> list[int]:
        steps = round_robin(20, 1, 1, torch.Generator().manual_seed(seed))
        return [step[0][0] for step in islice(steps, 40)]

    assert order(0) == order(0) != order(1)
    assert order(0)[:20] != order(0)[20:]
