"""The work of a call of a process group, as PyTorch waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from gradlane._handle import Handle, begin_all
from gradlane.torch._aliases import refuse_overlapping_places
from gradlane.torch._futures import Completions
from gradlane.torch._tensors import check_landing

Start = Callable[[], Handle[Any]]
"""Begins an operation."""


class Work(distributed.Work):
    """The operations of one call."""

    def __init__(self, result: Any, starts: Sequence[Start], *, lands: bool = True) -> None:
        """Begins the operations.

        Args:
            result: the tensors of the call, in lists.
            starts: begin one operation each.
            lands: whether results land in the tensors; if not, they are only read.
        Raises:
            InvalidArgumentError: results would land in tensors that overlap, or whose elements share memory, or an
                operation cannot begin. Then no memory of the call is in use.
        """
        super().__init__()
        if lands:
            places = list(_tensors_in(result))
            for place in places:
                check_landing(place)
            refuse_overlapping_places(places)
        self._handles = begin_all(starts)
        self._result = result
        _unclaimed[id(self)] = self
        if len(_unclaimed) > _UNCLAIMED_MAX:
            _unclaimed.pop(next(iter(_unclaimed)))

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Makes the current streams wait for the results; on the CPU it waits itself.

        Raises the error of the first operation that failed, when all have ended.
        """
        _unclaimed.pop(id(self), None)
        if _elements(self._result) == 1:
            _counters.append(self)
        first: BaseException | None = None
        for handle in self._handles:
            try:
                handle.wait(seconds(timeout))
            except Exception as error:
                first = first or error
        if first is not None:
            raise first
        return True

    def is_completed(self) -> bool:
        """Whether all operations have ended, well or not."""
        return all(handle.poll() for handle in self._handles)

    def is_success(self) -> bool:
        """Whether all operations have ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """The error of the first operation that failed, if one has."""
        return next((error for handle in self._handles if (error := handle.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        """The tensors of the call."""
        return self._result  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        """The same as `wait()`."""
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the tensors of the call."""
        _unclaimed.pop(id(self), None)
        completions, device, result = Completions.of_this_job(), _device(self._result), self._result
        futures = [completions.of(handle, device) for handle in self._handles]

        def all_landed(ended: torch.futures.Future[list[torch.futures.Future[Any]]]) -> Any:
            for future in ended.value():
                future.value()  # raises its error
            return result

        return torch.futures.collect_all(futures).then(all_landed)


_unclaimed: dict[int, Work] = {}
"""The newest works that nobody has waited for or asked for a future, by their identity.

C++ code of PyTorch 2.6, such as DDP, keeps only the C++ half of a work. With the Python half gone, it waits for ever.
"""

_UNCLAIMED_MAX = 1024
"""Programs that never wait for some works keep no more of them than that; DDP has one a bucket."""

_counters: deque[Work] = deque(maxlen=16)
"""The newest works of a single element that were waited for. DDP's `join` waits for the number of workers that still have
data, of which it keeps the C++ half alone, and asks for its future afterwards."""


def _tensors_in(result: Any) -> Iterator[torch.Tensor]:
    """The tensors of a call, one by one."""
    for one in result:
        if isinstance(one, torch.Tensor):
            yield one
        else:
            yield from _tensors_in(one)


def _elements(result: Any) -> int:
    """How many elements the tensors of a call have."""
    if isinstance(result, list):
        return sum(map(_elements, result))
    return result.numel() if isinstance(result, torch.Tensor) else 0


def _device(result: Any) -> torch.device:
    """The device of the tensors of a call."""
    while isinstance(result, list) and result:
        result = result[0]
    return result.device if isinstance(result, torch.Tensor) else torch.device("cpu")


def seconds(timeout: timedelta | None) -> float | None:
    """A time limit of PyTorch; None, and none or a negative one, leave it to the job's step timeout."""
    if timeout is None or timeout.total_seconds() <= 0:
        return None
    return timeout.total_seconds()
