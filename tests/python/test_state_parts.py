"""How the values of a state travel: in place where they can, also in containers."""

from __future__ import annotations

import pickle
from collections import namedtuple

import numpy as np
import pytest
from gradlane._parts import part_of

Pair = namedtuple("Pair", "weights moments")


def test_arrays_in_containers_are_received_in_place():
    theirs = {"layers": [np.ones(2), np.full((0, 3), 1.0)], "pair": Pair(np.full(1, 2.0), (3, "text")), "rate": 0.5}
    ours = {"rate": 0.1, "pair": Pair(np.zeros(1), (0, "")), "layers": [np.zeros(2), np.zeros((0, 3))]}
    layer, weights, layers = ours["layers"][0], ours["pair"].weights, ours["layers"]
    assert travelled(theirs, ours) is ours
    assert layer.tolist() == [1.0, 1.0] and weights.tolist() == [2.0] and ours["layers"] is layers and layers[0] is layer
    assert isinstance(ours["pair"], Pair) and ours["pair"].weights is weights and ours["pair"].moments == (3, "text")
    assert ours["rate"] == 0.5


def test_an_array_that_cannot_be_written_is_replaced():
    ours = [np.zeros(2)]
    ours[0].flags.writeable = False
    travelled([np.ones(2)], ours)
    assert ours[0].tolist() == [1.0, 1.0] and ours[0].flags.writeable


def test_lists_of_plain_values_may_differ_in_length_and_are_copied():
    theirs, ours = [[1.0, 3]], []
    part, own = part_of(theirs), part_of(ours)
    assert part.form() == own.form() == [] and part.digest() == "" and part.kind == own.kind == "value"
    assert travelled(theirs, ours) == [[1.0, 3]] and ours == []


def test_a_form_names_the_places_in_a_container():
    part = part_of({"b": [np.zeros(2, "float32"), 5], "a": None})
    assert part.form() == [["['a'] value"], ["['b'][0] array", "float32", [2]], ["['b'][1] value"]]
    assert part.kind == "arrays"


def test_a_digest_is_of_the_arrays_alone():
    digest = part_of([np.ones(2), {"epoch": 1}]).digest()
    assert digest == part_of([np.ones(2), {"epoch": 2}]).digest() != part_of([np.zeros(2), {"epoch": 1}]).digest()


def test_a_container_that_contains_itself_is_a_value():
    inside = [np.ones(1)]
    inside.append(inside)
    assert part_of(inside).form() == [["[0] array", "float64", [1]], ["[1] value"]]


def test_what_cannot_be_pickled_is_told_before_anything_is_sent():
    with pytest.raises((pickle.PicklingError, AttributeError)):
        part_of({"weights": np.ones(1), "rule": lambda: None}).digest()


@pytest.mark.torch
def test_modules_in_a_container_keep_their_order_and_are_no_arrays():
    torch = pytest.importorskip("torch")
    modules = [torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)]
    part = part_of(modules)
    assert part.kind == "container" and part.digest() != part_of(modules[::-1]).digest()
    assert [row[0] for row in part.form()] == ["[0] bias", "[0] weight", "[1] bias", "[1] weight"]
    assert part_of([torch.ones(2)]).kind == "arrays"


def travelled(theirs, ours):
    """What is to be the value of a newcomer that has `ours`."""
    donor, newcomer = Wire(is_donor=True), Wire(is_donor=False)
    assert part_of(theirs).travel(donor) is theirs
    newcomer.sent = donor.sent
    return part_of(ours).travel(newcomer)


class Wire:
    """Stands for a `Route`: keeps what the donor sends."""

    def __init__(self, is_donor):
        self.is_donor, self.sent = is_donor, []

    def beyond(self, place):
        return self

    def bytes(self, payload):
        return memoryview(self.object(payload))

    def object(self, value):
        if not self.is_donor:
            return pickle.loads(self.sent.pop(0))
        self.sent.append(pickle.dumps(value))
        return value
