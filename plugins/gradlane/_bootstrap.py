"""How a process finds its job.

In this order: explicit arguments, `GRADLANE_*`, `DMLC_*` (BytePS and ps-lite launch scripts), torchrun, `TF_CONFIG`,
MPI, Slurm, and else a single process. The native `detect_launch` interprets the variables and decides how the process
enters its job; this file carries that out. It adds one thing: under torchrun the join string travels through the store
of torchrun's agent, which works on several hosts without a common directory. Under launchers that set torchrun's
variables and have no agent, such as Ray Train, the store of PyTorch's first process group takes its place. The join
string is sealed if the job has a secret.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from gradlane import _core
from gradlane._software import software
from gradlane.errors import Error, TimeoutError

if TYPE_CHECKING:
    from torch.distributed import Store

Joining = Callable[[Mapping[str, str], _core.Embedded | None], None]
"""Is told the settings that were given as arguments before this process joins a job, and once more with the servers that it embeds for it."""

_STORE_INTERVAL = 0.02
"""Seconds between two looks into the store of torchrun's agent."""
_GIVE_UP_TIMEOUT = 2.0
"""Seconds for the members to hear that this process gives up. One that does not answer hears of it by itself later."""


class _Place(TypedDict, total=False):
    """Where a join string was found."""

    file: Path
    job: str


@dataclass(frozen=True, slots=True)
class Launch:
    """The place of this process in its job, before it has joined. `rank` is None if the coordinator assigns it."""

    source: str
    rank: int | None
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    num_nodes: int
    servers: int
    join_timeout: float
    compression: tuple[str, int, bool]
    """The fields of `CompressionSettings`."""
    entrance: _core._Entrance | BaseException
    """How this process enters its job, or the error that prevents it."""

    def placed(self, session: _core.Session) -> Launch:
        """The same with the place that the members' hosts give this process in an elastic job that has formed again."""
        local_rank, local_size, node_rank, num_nodes = session.local_place
        return replace(
            self, local_rank=local_rank, local_size=local_size, node_rank=node_rank, num_nodes=num_nodes
        )


@dataclass(frozen=True, slots=True)
class CompressionSettings:
    """The settings of compression of this process."""

    default: str
    """The codec where a call names none."""
    min_bytes: int
    """Where a codec is chosen for many tensors, smaller ones travel unchanged."""
    may_fall_back: bool
    """Whether elements that a codec does not encode may travel unchanged."""


@dataclass(frozen=True, slots=True)
class Job:
    """This process in its job: the session, its place, and the servers that it embeds, if any."""

    session: _core.Session
    launch: Launch
    embedded: _core.Embedded | None
    rank: int
    """As it was on entering; a forked process may not ask the session, whose locks it cannot take."""
    size: int
    settings: Mapping[str, str]
    """Those that were given as arguments; they go before environment and file."""
    compression: CompressionSettings

    @property
    def step_timeout(self) -> float:
        """The setting `step_timeout` of this process, in seconds."""
        return _core.step_timeout(dict(self.settings))

    def leave(self, timeout: float) -> None:
        """Ends the session, then the embedded servers, which first let the other members leave."""
        # If other members still work, they can continue without this worker, but not without its servers; `stop`
        # reports them.
        try:
            with contextlib.suppress(TimeoutError):
                self.session.shutdown(timeout)
        except KeyboardInterrupt:
            if self.embedded is not None:
                with contextlib.suppress(Error):
                    self.embedded.stop(0.0)
            raise
        if self.embedded is not None:
            self.embedded.stop(timeout)

    def give_up(self, cause: str) -> None:
        """Ends the job for all members because of `cause`; they hear of it before embedded servers stop."""
        with contextlib.suppress(Error):
            self.session.give_up(cause, _GIVE_UP_TIMEOUT)
        if self.embedded is not None:
            with contextlib.suppress(Error):
                self.embedded.stop(_GIVE_UP_TIMEOUT)


def enter(
    arguments: Mapping[str, str],
    settings: Mapping[str, str],
    timeout: float | None,
    generation: int,
    joining: Joining,
    store: Store | None = None,
) -> Job:
    """Finds the job and joins it.

    Args:
        arguments: of the caller: `rank`, `size`, `local_rank`, `servers`, `coordinator`; missing ones are detected.
        settings: knobs by name, as text.
        timeout: seconds for the whole job to form; None takes the setting `join_timeout`.
        generation: how many jobs this process has joined; prevents that the join string of a past job is used again.
        joining: called before anybody is waited for.
        store: what PyTorch makes its first process group with; used under torchrun's variables.
    Raises:
        ConfigError: the arguments or the environment contradict themselves, or name no coordinator.
        NotFormedError: some members did not join; the message names them.
    """
    patience = {} if timeout is None else {"join_timeout": _seconds(timeout)}
    settings = {**settings, **patience}
    launch = Launch(**_core.detect_launch({**settings, **arguments}, generation))
    timeout = launch.join_timeout
    entrance = launch.entrance
    compression = CompressionSettings(*launch.compression)
    if isinstance(entrance, BaseException):
        raise entrance
    if entrance["way"] == "alone":
        return Job(_core.Session.local(dict(settings)), launch, None, 0, 1, settings, compression)
    joining(settings, None)
    with contextlib.ExitStack() as while_joining:
        embedded, join, place = _meet(launch, entrance, dict(settings), generation, store, while_joining)
        try:
            if embedded is not None:
                joining(settings, embedded)
            session = _core.Session.join(
                join,
                rank=launch.rank,
                size=launch.size,
                servers=launch.servers,
                local_rank=launch.local_rank,
                local_size=launch.local_size,
                node_rank=launch.node_rank,
                num_nodes=launch.num_nodes,
                settings=dict(settings),
                timeout=timeout,
                software=software(),
                embedded=embedded,
                **place,
            )
        except BaseException:
            if embedded is not None:
                embedded.stop(0.0)
            raise
    if session.times_formed > 0:
        launch = launch.placed(session)
    return Job(session, launch, embedded, session.rank, session.size, settings, compression)


def _seconds(timeout: float) -> str:
    """`timeout` in the format of a setting, between a millisecond and a day."""
    return f"{min(max(timeout, 0.001), 86_400.0):.3f}s"


def _meet(
    launch: Launch,
    entrance: _core._Join | _core._Read | _core._Find | _core._Embed,
    settings: dict[str, str],
    generation: int,
    store: Store | None,
    while_joining: contextlib.ExitStack,
) -> tuple[_core.Embedded | None, str, _Place]:
    """Obtains the join string, and where a newer one would be.

    Rank 0 may have to start the coordinator and servers for it. `while_joining` ends what it does for the others.
    """
    if entrance["way"] == "join":
        return None, entrance["join"], {}
    if entrance["way"] == "read":
        path = entrance["path"]
        return None, _core.read_join(path, launch.join_timeout), {"file": path}
    job = entrance["job"]
    store = _common_store(store, launch.join_timeout, generation) if launch.source == "torchrun" else None
    if entrance["way"] == "find":
        if store is None:
            return None, _core.find_join(job, launch.join_timeout), {"job": job}
        return None, _core.unwrap_join(settings, job, _ask(store, launch.rank, launch.join_timeout)), {}
    embedded = _core.Embedded(
        bind=entrance["bind"],
        workers=entrance["workers"],
        servers=entrance["servers"],
        job=job,
        settings=settings,
        coordinator_only=entrance["coordinator_only"],
    )
    if store is None:
        embedded.publish(job)
    else:
        giver = _Giver(store, _core.wrap_join(settings, job, embedded.join), launch.size)
        while_joining.callback(giver.stop)
    return embedded, embedded.join, {}


class _Giver:
    """Gives the join string to the workers that ask for it through a store of PyTorch, until they have joined.

    The store outlives a job that fails and that torchrun starts again. So does what was put into it. So each worker asks
    with a word of its own, and takes the answer to that word alone.
    """

    def __init__(self, store: Store, join: str, size: int) -> None:
        self._store, self._join, self._size = store, join, size
        self._joined = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gl-join", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._joined.set()
        self._thread.join(_GIVE_UP_TIMEOUT)

    def _run(self) -> None:
        answered: dict[str, str] = {}
        while not self._joined.wait(_STORE_INTERVAL):
            for question in (_question(rank) for rank in range(1, self._size)):
                # Without a store nobody can join, and who waits for that says so.
                with contextlib.suppress(RuntimeError):
                    word = self._store.get(question).decode() if self._store.check([question]) else None
                    if word is not None and answered.get(question) != word:
                        self._store.set(_answer(word), self._join)
                        answered[question] = word


def _ask(store: Store, rank: int | None, timeout: float) -> str:
    """Gets the join string of rank 0. Looks again and again, because the store's own wait does not notice Ctrl-C."""
    word = os.urandom(8).hex()
    store.set(_question(rank), word)
    deadline = time.monotonic() + timeout
    while not store.check([_answer(word)]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 gave no join string in {timeout:.0f} s; see its own error", waited=timeout)
        time.sleep(_STORE_INTERVAL)
    return store.get(_answer(word)).decode()


def _question(rank: int | None) -> str:
    return f"rank {rank} asks"


def _answer(word: str) -> str:
    return f"join string for {word}"


def _common_store(given: Store | None, timeout: float, generation: int) -> Store | None:
    """A key-value store that all workers reach; None if there is none yet.

    It is the one given, that of PyTorch's default group, or that of torchrun's agent, which listens on MASTER_PORT.
    Without an agent that port is for `init_process_group`, so it is not bound here.
    """
    from torch import distributed

    if given is not None:
        store = given
    elif distributed.is_initialized():
        store = distributed.distributed_c10d._get_default_store()
    elif os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store, _, _ = next(distributed.rendezvous("env://", timeout=timedelta(seconds=timeout)))
    else:
        return None
    return distributed.PrefixStore(f"gradlane/{generation}", store)
