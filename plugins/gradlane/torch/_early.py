"""Gradients that leave for the servers while the backward pass goes on that makes them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from gradlane.errors import FailedPreconditionError
from gradlane.torch._in_flight import Loan, may_be_held, refuse
from gradlane.torch._parameter_watch import ours, remove_all

T = TypeVar("T")

_REMEDY = (
    "make the ServerOptimizer without overlap=True to clip, unscale or use gradients before step(), or give its rule a clip_value"
)


class Early:
    """Lends gradients as soon as autograd has them. Until `end`, every use of one raises an error that names its parameter."""

    def __init__(self, owner: T, named: Mapping[str, torch.nn.Parameter], ready: Callable[[T, str], None]) -> None:
        """Puts hooks on the parameters, which work as long as `owner` lives.

        Args:
            ready: called with the label of a parameter that has got its gradient; it may `lend` that.
        """
        self._loans: dict[str, Loan] = {}
        reference, hooks = weakref.ref(owner), []
        for label, parameter in named.items():
            hooks.append(parameter.register_hook(self._refuse_second(reference, label)))
            hooks.append(parameter.register_post_accumulate_grad_hook(_calling(reference, label, ready)))
        weakref.finalize(owner, remove_all, hooks).atexit = False
        weakref.finalize(owner, _abandon, self._loans).atexit = False

    def __bool__(self) -> bool:
        return bool(self._loans)

    def lend(self, label: str, parameter: torch.nn.Parameter) -> Loan:
        """Takes the gradient of a parameter out of the user's hands.

        Raises:
            FailedPreconditionError: another hook has cleared it.
        """
        is_held, given = may_be_held(parameter), parameter.grad
        if given is None:
            raise FailedPreconditionError(f"another hook cleared the gradient of {label} before it was sent; {_REMEDY}")
        loan = Loan(parameter, given.contiguous(), label, _REMEDY, given if is_held else None)
        self._loans[label] = loan
        return loan

    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradients that are lent, by label."""
        return {label: loan.gradient.detach() for label, loan in self._loans.items()}

    def end(self, *, keeps: bool) -> None:
        """Gives the gradients back, or clears them.

        Raises:
            FailedPreconditionError: somebody changed one meanwhile.
        """
        loans = list(self._loans.values())
        self._loans.clear()
        complaints = [loan.complaint() for loan in loans]
        for loan in loans:
            loan.end(loan.average() if keeps else None)
        refuse(filter(None, complaints), _REMEDY)

    def _refuse_second(self, owner: weakref.ref[Any], label: str) -> Callable[[torch.Tensor], None]:
        loans = self._loans

        def gradient_comes(_: torch.Tensor) -> None:
            if owner() is not None and label in loans:
                raise FailedPreconditionError(
                    f"parameter {label} gets a second gradient before step(), and the first one is at the servers; call step() "
                    "behind each backward pass, run all but the last one of a step within optimizer.no_sync(), or give accumulate="
                )

        return ours(gradient_comes)


def _calling(owner: weakref.ref[T], label: str, ready: Callable[[T, str], None]) -> Callable[[torch.Tensor], None]:
    def gradient_is_ready(_: torch.Tensor) -> None:
        living = owner()
        if living is not None:
            ready(living, label)

    return ours(gradient_is_ready)


def _abandon(loans: dict[str, Loan]) -> None:
    for loan in loans.values():
        loan.abandon()
    loans.clear()
