from __future__ import annotations

import pytest

from rl_insight.hardware import tokens_per_second_per_gpu


def test_throughput_of_one_gpu():
    assert tokens_per_second_per_gpu(1_000_000, 50.0, 8) == 2500.0
    assert tokens_per_second_per_gpu(0, 50.0, 8) == 0.0


@pytest.mark.parametrize(("seconds", "gpus"), [(50.0, 0), (0.0, 8), (0.0, 0), (-1.0, 8)])
def test_throughput_without_time_or_gpus_is_none(seconds, gpus):
    assert tokens_per_second_per_gpu(1_000, seconds, gpus) is None
