"""Averages the gradients of Keras variables where PyTorch is the backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradlane import _agreement, _session
from gradlane._agreement import Agreement
from gradlane._averaging import Averaging, label, path_of
from gradlane.errors import UnsupportedError
from gradlane.torch import _tensors
from gradlane.torch.groups import begin_copies


def average(gradients: Sequence[Any], variables: Sequence[Any], namespace: str, how: Averaging) -> list[Any]:
    """Averages gradients, which are tensors of PyTorch; as `gradlane.tensorflow.gradients.average`."""
    _agreement.check_in_step()
    present = {i: _prepared(gradient, how) for i, gradient in enumerate(gradients) if gradient is not None}
    if _session.size() > 1:
        kinds = [_kind(present[i]) if i in present else None for i in range(len(gradients))]
        labels = [label(i, variable) for i, variable in enumerate(variables)]
        rows = ((path_of(i, variables[i]), *_tensors.wire_form(gradient)) for i, gradient in present.items())
        reduction = how.reduction_of(rows)
        agreement = Agreement(namespace, labels, kinds)
        agreement.check(agreement.begin().wait())
        names = agreement.names(present)
        averages = begin_copies(True, list(present.values()), names, reduction).wait()
        present = dict(zip(present, averages, strict=True))
    return [present.get(i) for i in range(len(gradients))]


def _prepared(gradient: Any, how: Averaging) -> Any:
    gradient = gradient.detach()
    if gradient.is_sparse and not how.sparse_as_dense:
        raise UnsupportedError("a sparse gradient in Keras with PyTorch; use sparse_as_dense=True, or gradlane.torch")
    return gradient.to_dense() if gradient.is_sparse else gradient


def _kind(gradient: Any) -> str:
    return f"{str(gradient.dtype).removeprefix('torch.')} {list(gradient.shape)}"
