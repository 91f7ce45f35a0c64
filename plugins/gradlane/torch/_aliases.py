"""Tensors that share memory in one call: the same tensor under two names travels once, and other overlaps are refused."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import torch

from gradlane.errors import InvalidArgumentError
from gradlane.torch import _tensors


def without_aliases(named: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors that differ, and for each other name the name of the same tensor.

    Two names have the same tensor if they have the same elements of memory in the same order, as tied weights do.

    Raises:
        InvalidArgumentError: two tensors share a part of their memory (both are named), or one has several elements at one
            place.
    """
    first: dict[Hashable, str] = {}
    kept: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in named.items():
        _tensors.check_place_of(name, tensor)
        if _tensors.overlaps_itself(tensor):
            raise InvalidArgumentError(
                f"tensor {name} of shape {list(tensor.shape)} has several elements at one place of memory, as expand() makes "
                "them, and so cannot be written; replace it by its clone()"
            )
        same = first.setdefault(_elements_of(name, tensor), name)
        if same == name:
            kept[name] = tensor
        else:
            aliases[name] = same
    _refuse_overlaps(kept)
    return kept, aliases


def _elements_of(name: str, tensor: torch.Tensor) -> Hashable:
    """Equal for tensors that are the same memory: what one gets, the other has. Shapes may differ if both fill it without gaps."""
    if tensor.numel() == 0 or tensor.is_meta:
        return name
    # Not contiguous alone: a tied decoder has the transposed weight of its encoder.
    is_whole = tensor.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense.default(tensor)
    layout = tensor.numel() if is_whole else (tensor.shape, tensor.stride())
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.is_conj(), tensor.is_neg(), layout


def refuse_overlapping_places(places: Sequence[torch.Tensor]) -> None:
    """Raises if results of one call would land on each other.

    Raises:
        InvalidArgumentError: two of the tensors are the same, or overlap (their positions are named).
    """
    if len(places) > 1 and (pair := _overlapping({str(at): place for at, place in enumerate(places)})) is not None:
        raise InvalidArgumentError(
            f"tensors {pair[0]} and {pair[1]} of the {len(places)} in which results land are the same or overlap, so that "
            "one result would overwrite the other; give each its own memory"
        )


def _refuse_overlaps(named: Mapping[str, torch.Tensor]) -> None:
    """Raises for two tensors that have some memory in common."""
    if (pair := _overlapping(named)) is not None:
        raise InvalidArgumentError(
            f"tensors {pair[0]} and {pair[1]} are different views of one memory and overlap, so that what one gets "
            "would change the other; leave one of them out, or replace it by its clone()"
        )


def _overlapping(named: Mapping[str, torch.Tensor]) -> tuple[str, str] | None:
    """The names of the first two tensors that have some memory in common."""
    by_storage: dict[Hashable, list[str]] = {}
    for name, tensor in named.items():
        if tensor.numel() and not tensor.is_meta:
            by_storage.setdefault((tensor.device, tensor.untyped_storage().data_ptr()), []).append(name)
    for names in by_storage.values():
        names.sort(key=lambda name: named[name].data_ptr())
        open_ones: list[str] = []  # those that end behind the beginning of the present one
        for name in names:
            open_ones = [other for other in open_ones if _end_of(named[other]) > named[name].data_ptr()]
            for other in open_ones:
                if _overlap(named[other], named[name]):
                    return other, name
            open_ones.append(name)
    return None


def _overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors of one storage, of which one begins within the other, have an element in common."""
    if first.dtype != second.dtype or first.is_contiguous():
        return True
    marks = torch.zeros(first.untyped_storage().nbytes() // first.element_size(), dtype=torch.bool)
    marks.as_strided(first.shape, first.stride(), first.storage_offset()).fill_(True)
    return bool(marks.as_strided(second.shape, second.stride(), second.storage_offset()).any())


def _end_of(tensor: torch.Tensor) -> int:
    """The address behind the last element."""
    last: Iterable[int] = (
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return tensor.data_ptr() + (sum(last) + 1) * tensor.element_size()
