"""What is said of jobs that something slows down; `make test-diagnosis` tries more causes."""

from __future__ import annotations

import pytest
from diagnosis import EXPERIMENTS, Experiment, examine, wrong

QUICK = [
    "a rank that sleeps before it submits",
    "a slow sum lane",
    "healthy workers of one machine",
    "a rank that sleeps on the only machine",
    "a rank that sleeps on a machine with another one",
    "a data loader that stalls",
]
"""The others need links of their own, or a machine that does nothing else."""


@pytest.mark.over("quic")
@pytest.mark.parametrize("experiment", [of for of in EXPERIMENTS if of.name in QUICK], ids=lambda of: of.name)
def test_all_name_the_rank_the_place_and_the_cause(experiment: Experiment, tmp_path):
    assert wrong(experiment, examine(experiment, tmp_path)) == []
