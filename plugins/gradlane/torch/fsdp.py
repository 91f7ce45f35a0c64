"""Averages the gradients of sharded models across nodes: FSDP2 inside a node, Gradlane between nodes.

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    import gradlane.torch as gl

    mesh = init_device_mesh("cuda", (nodes, workers_of_a_node), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    gl.fsdp.attach(model)          # the rest of the training script stays as it is

Each node has the whole model, in shards that its own backend (NCCL, Gloo) gathers and scatters. After a backward pass
has reduced the gradients of a module inside the nodes, the workers that hold the same shard average it. So each worker
sends and receives its shard alone. PyTorch calls this hybrid sharding (HSDP).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch

from gradlane import _names, _session
from gradlane._compression import Compressor
from gradlane._objects import gather_by_rank
from gradlane._reduction import Average, ReduceOp, Reduction, reduction_of
from gradlane._sets import ProcessSet
from gradlane.errors import InvalidArgumentError, MismatchError, UnsupportedError
from gradlane.torch._owners import own
from gradlane.torch.broadcast import broadcast_tensors
from gradlane.torch.ops import begin_in_place

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def attach(
    model: torch.nn.Module, *, op: ReduceOp = Average, compression: Compressor | None = None, name: str | None = None
) -> None:
    """Makes `model` average its gradients over the workers of the job that hold the same shards.

    Shards, buffers and frozen parameters are broadcast first, from the first of these workers. Every node must use the
    same modules in each backward pass, because a module is averaged when its gradients are ready.

    In a job with several workers on a node, tensors on devices go through host memory.

    Args:
        model: on which `fully_shard` was called with a mesh of the workers of one node; on all workers of the job.
        op: `Average`, or `Sum` if `set_gradient_divide_factor` divides by the number of all workers.
        compression: how shards travel, one of `Compression`; None sends them unchanged. The shard of a module
            is one vector, so what belongs to its vectors and small parameters is compressed, too. Equal on all workers.
        name: a prefix of the tensors' names; needed only if workers attach models in different orders.
    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: the model was not sharded, a parameter is outside of what was sharded, is not on a device
            yet, or is averaged already; or the mesh spans all workers, so that nothing is left to average.
        UnsupportedError: a module has several groups of parameters (`shard_placement_fn` with several meshes); or this
            release of PyTorch has no `FSDPModule.set_all_reduce_hook`, as 2.6.
        MismatchError: the workers sharded different modules, or over meshes of different shapes (both are named).
    """
    _session.session()
    reduction = reduction_of(op, compression=compression)
    shards = list(_shards(model))
    namespace = _names.namespace("fsdp", name)
    holders = _holders(shards, namespace)
    averages = [
        _Average(f"{namespace}/{shard.path}", replace(reduction, process_set=holders[shard.path])) for shard in shards
    ]
    for shard, average in zip(shards, averages, strict=True):
        own(average, shard.parameters)
    for shard, average in zip(shards, averages, strict=True):
        shard.hook(average)
    for shard in shards:
        members = holders[shard.path]
        first = 0 if members is None else members.ranks[0]
        broadcast_tensors({f"{namespace}/state/{n}": tensor for n, tensor in shard.tensors()}, first, members)
    averaged = {name for shard in shards for name, _ in shard.parameters}
    frozen = {n: parameter for n, parameter in model.named_parameters() if n not in averaged}
    whole = dict(model.named_buffers()) | frozen
    broadcast_tensors({f"{namespace}/state/{n}": tensor for n, tensor in whole.items()}, 0)


@dataclass(frozen=True)
class _Shard:
    """What this worker holds of the parameters of one sharded module, without those of sharded modules inside of it."""

    path: str
    module: FSDPModule
    parameters: Sequence[tuple[str, torch.nn.Parameter]]

    def place(self) -> tuple[list[int], list[int]]:
        """The shape of its mesh, and the coordinates of this worker in it."""
        mesh = _sharded(self.parameters[0][1]).device_mesh
        return list(mesh.shape), list(mesh.get_coordinate() or [])

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The part of each parameter that is here, by the name of the parameter."""
        for name, parameter in self.parameters:
            yield name, _sharded(parameter.detach()).to_local()

    def hook(self, average: _Average) -> None:
        """Calls `average` with the gradients of the module whenever they were reduced inside the node."""
        try:
            self.module.set_all_reduce_hook(average)
        except ValueError as error:
            raise UnsupportedError(
                f"{_called(self.path)} has several groups of parameters; shard it over one mesh, or call fully_shard "
                "on its modules one by one"
            ) from error


@dataclass(frozen=True)
class _Average:
    """Averages the gradients of one module. It lives as long as the module, whose hook it is."""

    name: str
    reduction: Reduction

    def __call__(self, reduced: torch.Tensor) -> None:
        """Averages this worker's shard of the gradients, in place."""
        begin_in_place(True, reduced, self.name, self.reduction).wait()


def _shards(model: torch.nn.Module) -> Iterator[_Shard]:
    """The sharded modules that have parameters of their own."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    if not hasattr(FSDPModule, "set_all_reduce_hook"):
        raise UnsupportedError(
            f"FSDP2 of PyTorch {torch.__version__} has no hook between nodes; take a newer release, or shard over a "
            'mesh of two dimensions with the backend "gradlane"'
        )
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(f"{type(model).__name__} is no module; give the model that fully_shard returned")
    modules = {path: module for path, module in model.named_modules() if isinstance(module, FSDPModule)}
    if not modules:
        raise InvalidArgumentError(
            f"no module of {type(model).__name__} is sharded; call torch.distributed.fsdp.fully_shard on it first"
        )
    parameters: dict[str, list[tuple[str, torch.nn.Parameter]]] = {path: [] for path in modules}
    for name, parameter in model.named_parameters():
        inside = [path for path in modules if not path or name.startswith(f"{path}.")]
        if not parameter.requires_grad and not isinstance(parameter, DTensor):
            continue
        if not inside or not isinstance(parameter, DTensor):
            raise InvalidArgumentError(
                f"parameter {name} is not sharded, and so its gradient would not be averaged; call fully_shard on the "
                "whole model too, after its layers"
            )
        if parameter.is_meta:
            raise InvalidArgumentError(
                f"parameter {name} is on the device meta; call model.to_empty() and initialize it before attach"
            )
        parameters[max(inside, key=len)].append((name, parameter))
    for path, named in parameters.items():
        if named:
            yield _Shard(path, modules[path], named)


def _holders(shards: Sequence[_Shard], namespace: str) -> dict[str, ProcessSet | None]:
    """For each module, the workers that hold the same shard as this worker; None if they are all."""
    mine = [[shard.path, *shard.place()] for shard in shards]
    places: dict[int, _Places] = gather_by_rank(mine, f"{namespace}/places", plain=True)
    rank = _session.rank()
    for other, theirs in places.items():
        _check_alike(places[rank], other, theirs)
    holders = {}
    for position, shard in enumerate(shards):
        by_rank = {other: theirs[position][2] for other, theirs in places.items()}
        coordinates = list(by_rank.values())
        same = [other for other, its in by_rank.items() if its == by_rank[rank]]
        uneven = next((its for its in coordinates if coordinates.count(its) != len(same)), None)
        if uneven is not None:
            raise InvalidArgumentError(
                f"{_called(shard.path)}: {len(same)} workers hold the shard {by_rank[rank]} of the mesh, and "
                f"{coordinates.count(uneven)} the shard {uneven}; give each node the same number of workers"
            )
        if len(same) == 1 and len(coordinates) > 1:
            raise InvalidArgumentError(
                f"{_called(shard.path)}: each of the {len(coordinates)} workers holds a shard of its own, so nothing "
                'is left to average; give fully_shard a mesh of the workers of one node, such as mesh["shard"]'
            )
        holders[shard.path] = None if len(same) == len(coordinates) else ProcessSet(same)
    return holders


def _check_alike(ours: _Places, other: int, theirs: _Places) -> None:
    """Raises unless another worker has sharded the same modules over meshes of the same shapes."""
    for mine, its in zip_longest(ours, theirs):
        if mine is None or its is None or mine[:2] != its[:2]:
            rank, described, its_described = _session.rank(), _described(mine), _described(its)
            raise MismatchError(
                f"fsdp.attach: worker {rank} sharded {described}, and worker {other} {its_described}; shard the same "
                "modules on all workers, over as many workers on each node",
                tensor="fsdp.attach",
                field="shape",
                first=(rank, described),
                second=(other, its_described),
            )


def _described(place: _Place | None) -> str:
    return "nothing" if place is None else f"{_called(place[0])} over a mesh of {place[1]}"


def _called(path: str) -> str:
    return f"module {path}" if path else "the whole model"


def _sharded(parameter: torch.Tensor) -> DTensor:
    from torch.distributed.tensor import DTensor

    assert isinstance(parameter, DTensor), "others are refused before"
    return parameter


_Place = Sequence[Any]
"""Of a module: its path, the shape of its mesh, and the coordinates of a worker in it."""

_Places = Sequence[_Place]
"""Those of all modules that a worker has sharded."""
