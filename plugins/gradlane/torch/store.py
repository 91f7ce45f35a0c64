"""The key-value store of the job, as a store of `torch.distributed`.

    gl.init()
    store = gl.Store()
    torch.distributed.init_process_group("gloo", store=store, rank=gl.rank(), world_size=gl.size())

The coordinator keeps the keys, for as long as it lives. No rank has a server for them, as rank 0 has with `TCPStore`, so
the store survives the loss of any worker with which the job goes on.

It finds the session of this process at each call, so it goes on when an elastic job forms again. A process group that was
made with it does not, because PyTorch gives a group its ranks once and for all.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import ParamSpec, TypeVar

from torch import distributed

from gradlane import _session
from gradlane.errors import TimeoutError

P = ParamSpec("P")
T = TypeVar("T")


def _raises_as_pytorch(call: Callable[P, T]) -> Callable[P, T]:
    """Makes an error about time the class that the stores of PyTorch raise."""

    @functools.wraps(call)
    def wrapped(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return call(*arguments, **named)
        except TimeoutError as error:
            raise distributed.DistStoreError(str(error)) from error

    return wrapped


class Store(distributed.Store):
    """Small values by key, which all workers of the job share.

    All instances of a job are the same store; `torch.distributed.PrefixStore` keeps users apart. A key has at most 1,024
    bytes, a value 64 KiB, and all keys and values of a job 16 MiB, where each key counts 64 bytes more. At most 4,096 reads
    wait in a job at the same time. The store is for workers that agree on something, not for tensors.

    Every method may raise, besides the errors that it names:
        torch.distributed.DistStoreError: a key that is waited for did not come in time, or the coordinator did not answer.
            In a job that goes on without lost workers, `set`, `add` and all others without a timeout wait longer than the
            step timeout for a coordinator that is away.
        ResourceExhaustedError: one of the limits would be exceeded. Nothing was changed.
        PeerLostError: the job ended because a member was lost, which is named. Other ends raise their own errors.
        NotInitializedError: before `init` and after `shutdown`.
    """

    timeout: timedelta
    """How long `get` and `wait` wait for a key; `set_timeout` changes it."""

    def __init__(self, timeout: timedelta | None = None) -> None:
        """The store of the job that this process has joined.

        Args:
            timeout: how long `get` and `wait` wait for a key. None takes PyTorch's default, which is 5 minutes.
        """
        super().__init__()
        _session.session()
        if timeout is not None:
            self.set_timeout(timeout)
        # PyTorch keeps the C++ half of a store alone, for example below a `PrefixStore`. Without the Python half, its calls
        # would fail.
        _kept.append(self)

    @_raises_as_pytorch
    def set(self, key: str, value: str | bytes) -> None:
        """Gives a key a value; an earlier one is overwritten."""
        _session.session().store_put(key, _bytes(value))

    @_raises_as_pytorch
    def get(self, key: str) -> bytes:
        """The value of a key. Waits until some worker has put it, at most for the timeout of the store."""
        value = _session.session().store_get(key, True, self.timeout.total_seconds())
        assert value is not None, "a read that waits ends with a value or an error"
        return value

    @_raises_as_pytorch
    def add(self, key: str, value: int) -> int:
        """Adds to a number, which is 0 at first, and returns the sum. `get` reads it as decimal digits.

        Raises:
            InvalidArgumentError: the key has another value, or 64 bits do not hold the sum.
        """
        return _session.session().store_add(key, value, None)

    @_raises_as_pytorch
    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Gives a key the desired value if it has the expected one, where an absent key counts as empty.

        Returns:
            The value after that; of a key that is absent, the expected value, as other stores of PyTorch do.
        """
        expected, desired = _bytes(expected_value), _bytes(desired_value)
        done, present = _session.session().store_put(key, desired, expected)
        if done:
            return desired
        return expected if present is None else present

    @_raises_as_pytorch
    def append(self, key: str, value: str | bytes) -> None:
        """Puts bytes behind the value of a key, which is empty at first."""
        _session.session().store_append(key, _bytes(value), None)

    @_raises_as_pytorch
    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have a value. Does not wait."""
        return all(_session.session().store_get(key, False, None) is not None for key in keys)

    @_raises_as_pytorch
    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until all keys have values, at most for `timeout`, or for that of the store."""
        until = time.monotonic() + (self.timeout if timeout is None else timeout).total_seconds()
        for key in keys:
            _session.session().store_get(key, True, max(0.0, until - time.monotonic()))

    @_raises_as_pytorch
    def delete_key(self, key: str) -> bool:
        """Removes a key; returns whether it had a value."""
        return _session.session().store_delete(key, False, None) == 1

    @_raises_as_pytorch
    def list_keys(self) -> list[str]:
        """All keys of the job, in the order of their bytes."""
        return _session.session().store_keys("", None)

    def num_keys(self) -> int:
        """How many keys the job has."""
        return len(self.list_keys())

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of all keys; waits for each as `get`."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Gives each key its value, one after the other."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Whether there are `append`, `multi_get` and `multi_set`."""
        return True

    def clone(self) -> Store:
        """Another instance of the same store, with the same timeout."""
        return Store(self.timeout)

    # The names by which PyTorch's C++ code, such as `PrefixStore`, calls two of these methods.
    getNumKeys = num_keys
    deleteKey = delete_key


_kept: list[Store] = []
"""The instances of this process."""


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value
