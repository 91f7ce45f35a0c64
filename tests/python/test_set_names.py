"""How the names of tensors that are not all workers' are written, as errors and warnings show them."""

import itertools
import re

import pytest
from gradlane import ProcessSet

WRITTEN = {
    "0.1": [0, 1],
    "3": [3],
    "0-2": [0, 1, 2],
    "0-19": range(20),
    "0-1022": range(1023),
    "4-60/8": range(4, 64, 8),
    "0-3.7.12-15": [0, 1, 2, 3, 7, 12, 13, 14, 15],
    "0.2.7.9.14": [0, 2, 7, 9, 14],
}


@pytest.mark.parametrize("written", WRITTEN)
def test_the_ranks_of_a_set_stand_in_its_names(written):
    assert ProcessSet(WRITTEN[written]).name_of("loss") == f"set {written}: loss"


def test_sets_have_names_of_their_own():
    sets = [of for size in range(1, 9) for of in itertools.combinations(range(8), size)]
    assert len({ProcessSet(of).name_of("loss") for of in sets}) == len(sets)


def test_only_ranks_without_any_order_are_shortened():
    squares = [rank * rank for rank in range(40)]
    name = ProcessSet(squares).name_of("loss")
    assert re.fullmatch(r"set 0\.1\.4 and more, 40 ranks ~[0-9a-f]{16}: loss", name)
    assert name != ProcessSet([*squares[:-1], 1522]).name_of("loss")


def test_tensors_without_a_name_are_described_by_words():
    torch = pytest.importorskip("torch")
    from gradlane.compat._unnamed import _described

    def described(*lengths):
        return _described("call", [torch.ones(length) for length in lengths], None)

    assert _described("call", [torch.ones(2, 3)], None) == "call.float32.2x3"
    assert described(5, 5, 1) == described(5, 5, 1) == "call.float32.5.and 2 more, list 1"
    assert described(*range(5, 105)) == "call.float32.5.and 99 more, list 2"


@pytest.mark.parametrize("workers", [2, 8, 16, 64, 90, 91, 128, 181, 182, 256, 1000])
def test_the_pairs_of_a_process_group_leave_names_for_others(workers):
    pytest.importorskip("torch")
    from gradlane.torch._group_transfers import NAMES_MAX, pair_names

    kept = pair_names(workers)
    assert workers * (workers - 1) * kept <= 4 * NAMES_MAX, "half of the names of a job"
    assert kept >= 1 or workers > 181
