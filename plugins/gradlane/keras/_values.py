"""Broadcasts Keras variables, for each of Keras' backends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from gradlane import _session
from gradlane._agreement import Agreement
from gradlane._averaging import label
from gradlane._groups import submit_all
from gradlane._operations import check_root
from gradlane._reduction import broadcast_of
from gradlane.errors import InvalidArgumentError


def broadcast_variables(variables: Iterable[Any], root_rank: int = 0, *, name: str = "keras variables") -> None:
    """Give every worker the values of Keras variables on `root_rank`, bit for bit.

    Args:
        variables: such as `model.variables` and `optimizer.variables`; the same list on all workers.
        root_rank: the rank whose values all workers get.
        name: a prefix of the tensors' names.
    Raises:
        MismatchError: a worker has one of them in another dtype or shape (both are named).
        InvalidArgumentError: something in `variables` is no Keras variable.
    """
    listed = list(variables)
    for variable in listed:
        if not isinstance(variable, keras.Variable):
            raise InvalidArgumentError(f"{type(variable).__name__} is no keras.Variable; give model.variables")
    values = [np.array(keras.ops.convert_to_numpy(variable.value), order="C") for variable in listed]
    kinds = [f"{value.dtype} {list(value.shape)}" for value in values]
    if _session.passes_over(name, is_broadcast=True):
        return
    agreement = Agreement(name, [label(*pair) for pair in enumerate(listed)], kinds)
    root = check_root(root_rank)
    agreement.check(agreement.begin().wait())
    bits = [value.reshape(-1).view(np.uint8) for value in values]
    submit_all(
        tuple(agreement.names(range(len(bits)))),
        ("uint8",) * len(bits),
        tuple(bytes.shape for bytes in bits),
        [bytes.ctypes.data for bytes in bits],
        None,
        broadcast_of(root),
        owner=bits,
        result=None,
        waits=True,
    ).wait()
    for variable, value in zip(listed, values, strict=True):
        variable.assign(value)
