"""Checkpoints of the parameters that live on servers, with all that their rules keep.

    saved = gl.checkpoint.save("runs/a", keep=3)                # one worker saves for all
    loaded = gl.checkpoint.load("runs/a")                       # and one loads for all

Each server writes the parts that it has, in files that other tools read (safetensors); a worker only asks. What is saved is
one moment: in a mode with rounds, the same round on all servers; without rounds, of each part the version that it has
then. Training goes on meanwhile. A checkpoint is whole or not there: the one before stays the latest until then, whatever
dies. It can be loaded by any number of servers, and nothing is changed unless all of them have read and checked their parts.

Paths are directories below `checkpoint_dir`, a setting of coordinator and servers that all of them share; where it is not
set, it is the directory in which they were started. Each directory has the checkpoints of one training, `checkpoint-1`,
`checkpoint-2`, and `latest`, which names the newest whole one. Tables are saved apart: see `gradlane.tables`.

**Lost servers.** With `on_server_loss=restore` the loss of a server is not the end of the job: it forms again, and all workers
go back to the latest checkpoint.

    def train():
        model = make()                                          # the same on all workers
        optimizer = gl.ServerOptimizer(model.named_parameters(), name="net", rule=gl.rules.AdamW(lr=1e-3))
        found = gl.checkpoint.resume("runs/a")                  # None if there is none yet
        optimizer.pull()
        for step in range(found.extra + 1 if found else 0, 10_000):
            ...
            if gl.rank() == 0 and step % 100 == 0:
                gl.checkpoint.save("runs/a", keep=3, extra=step)

    gl.checkpoint.run(train)

When a server is lost, everything under way fails with a `StateLostError`, on all workers. `run` joins the job again and calls
`train` once more, which makes its parameters anew: the servers have nothing. So make models and optimizers in `train`. The
same script goes on after the end of a whole job.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

from gradlane import _core, _session
from gradlane._objects import broadcast_object
from gradlane._saved import Reader as Reader
from gradlane._saved import SavedTensor as SavedTensor
from gradlane._saved import export as export
from gradlane._saved import extra_of, number_of
from gradlane._saved import state_dict as state_dict
from gradlane._saved import to_dcp as to_dcp
from gradlane.errors import Error, InvalidArgumentError, StateLostError, StillRunningError

T = TypeVar("T")
Missing = Literal["error", "init", "zero"]

TIMEOUT = 3600.0
"""Seconds that a save or a load may take, unless the caller says otherwise."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is whole."""

    number: int
    """Those of one directory count from 1."""
    directory: str
    """Its own directory, below `checkpoint_dir`."""
    tensors: int
    """How many tensors were written, or read."""
    bytes: int
    """The bytes of their values."""
    files: int
    """How many files it has."""
    steps: Mapping[int, int]
    """The global step of each clock, by the clock's key."""
    extra: Any
    """What was given to `save`."""

    @property
    def step(self) -> int | None:
        """The global step, where the parameters have one clock; None where they have none, or several."""
        return next(iter(self.steps.values())) if len(self.steps) == 1 else None


class Saving:
    """A checkpoint that is being saved."""

    def __init__(self, path: str, keep: int | None, notes: str, tables_apart: bool, timeout: float) -> None:
        self._outcome: Checkpoint | BaseException | None = None
        self._path = path
        session = _session.session()

        def save() -> None:
            try:
                self._outcome = _told(_core.save_checkpoint(session, path, keep, notes, tables_apart, timeout))
            except BaseException as error:  # whoever waits gets it
                self._outcome = error

        # It ends with the save, at the latest after `timeout`; the interpreter does not wait for it.
        self._thread = threading.Thread(target=save, name="gradlane-save", daemon=True)
        self._thread.start()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> Checkpoint:
        """The checkpoint, once it is whole.

        Args:
            timeout: seconds; None for as long as the save may take.
        Raises:
            StillRunningError: it takes longer, and goes on.
            Error: it has failed, as `save` says. The checkpoint before is still the latest one.
        """
        self._thread.join(timeout)
        if self._outcome is None:
            waited = timeout or 0.0
            raise StillRunningError(
                f"saving a checkpoint in {self._path!r} goes on: not done after {waited:.1f} s",
                what=f"saving a checkpoint in {self._path!r}",
                waited=waited,
            )
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


@overload
def save(
    path: str | os.PathLike[str],
    *,
    async_: Literal[False] = ...,
    keep: int | None = ...,
    extra: Any = ...,
    tables_apart: bool = ...,
    timeout: float = ...,
) -> Checkpoint: ...
@overload
def save(
    path: str | os.PathLike[str],
    *,
    async_: Literal[True],
    keep: int | None = ...,
    extra: Any = ...,
    tables_apart: bool = ...,
    timeout: float = ...,
) -> Saving: ...
def save(
    path: str | os.PathLike[str],
    *,
    async_: bool = False,
    keep: int | None = None,
    extra: Any = None,
    tables_apart: bool = False,
    timeout: float = TIMEOUT,
) -> Checkpoint | Saving:
    """Saves all parameters of the job, with all that their rules keep. One worker calls it, for all.

    The values are those of one moment between two steps: in a mode with rounds that of the last round that was closed.
    Nobody waits but this call.

    Args:
        path: the directory of the checkpoints of this training, below `checkpoint_dir`. It is made if it is not there.
        async_: True to return at once; the handle tells when the checkpoint is whole. Who trains on meanwhile may get a later
            round: `step` of what is loaded says which, and `extra` does not.
        keep: how many checkpoints stay in the directory; the oldest ones go once the new one is whole. None keeps all.
        extra: what `load` gives back, such as the epoch: anything that JSON can say, at most 64 KiB.
        tables_apart: whether the job may have tables. The checkpoint has nothing of them: save each by its own `Table.save`, and
            note in `extra` which snapshot belongs to this checkpoint.
        timeout: seconds.
    Raises:
        InvalidArgumentError: the path leads out of `checkpoint_dir`, or another argument is not what it should be.
        FailedPreconditionError: another worker saves or loads, a parameter has no value, the job has a table, or the directory
            has checkpoints of another training, which was not loaded first.
        ResourceExhaustedError: a server has no memory for values that change while they are written.
        UnavailableError: the disk is full, or a file cannot be written. What was saved before stays.
        TimeoutError: it took too long. What was saved before stays.
    """
    if keep is not None and (not isinstance(keep, int) or isinstance(keep, bool) or keep < 1):
        raise InvalidArgumentError(f"keep={keep!r}; give a number of checkpoints, at least 1, or None for all")
    if not isinstance(tables_apart, bool):
        raise InvalidArgumentError(f"tables_apart={tables_apart!r}; give True or False")
    saving = Saving(_path(path), keep, _notes(extra), tables_apart, _seconds(timeout))
    return saving if async_ else saving.wait()


def load(
    path: str | os.PathLike[str],
    *,
    checkpoint: int | None = None,
    missing: Missing = "error",
    ignore_extra: bool = False,
    optimizer: bool = True,
    timeout: float = TIMEOUT,
) -> Checkpoint:
    """Loads the parameters of the job. One worker calls it, for all, after the parameters were made.

    The servers read and check all of it first; if anything is wrong, nothing is changed. Afterwards each worker reads the
    values, as after any change. The global steps of the clocks go on from those of the checkpoint.

    Args:
        path: the directory to which the checkpoints were saved, below `checkpoint_dir`.
        checkpoint: the number of one of them; None for the latest.
        missing: what becomes of parameters that the checkpoint lacks: "error" to load nothing, "init" to leave them as
            they are, "zero".
        ignore_extra: whether the checkpoint may have tensors that are no parameters of this job.
        optimizer: False to load the values alone, so that rules begin anew.
        timeout: seconds.
    Raises:
        NotFoundError: no whole checkpoint is there, or a tensor is missing; it is named.
        CorruptCheckpointError: a file is not what it was; it is named.
        IncompatibleError: the files have the form of another version.
        FailedPreconditionError: a tensor has another element type or shape, or another optimizer; a round has begun;
            another worker saves or loads.
        InvalidArgumentError: the path leads out of `checkpoint_dir`, or another argument is not what it should be.
        TimeoutError: it took too long, and nothing was changed.
    """
    return _load(path, number_of(checkpoint), missing, (ignore_extra, optimizer, False), timeout)


def resume(
    path: str | os.PathLike[str],
    *,
    missing: Missing = "error",
    ignore_extra: bool = False,
    optimizer: bool = True,
    timeout: float = TIMEOUT,
) -> Checkpoint | None:
    """Goes back to the latest checkpoint of a directory. All workers call it, after they have made their parameters.

    One worker loads for all, and all hear what was loaded; no call returns before the servers have the values. Each worker
    reads them afterwards, as after `load`. If nothing was saved yet, the parameters stay as they were made, and the training
    begins from there.

    Args:
        path, missing, ignore_extra, optimizer, timeout: as for `load`; equal on all workers.
    Returns:
        The checkpoint, on all workers; None if the directory has none.
    Raises:
        Error: as `load`, on all workers.
        StallError: other workers did not come in time; it names them.
    """
    session, seconds = _session.session(), _seconds(timeout)
    lowest = _session.ranks()[0]
    session.barrier("gradlane.checkpoint.made", seconds)
    outcome: Checkpoint | Error | None = None
    if _session.rank() == lowest:
        try:
            loaded = _load(path, None, missing, (ignore_extra, optimizer, True), timeout)
            outcome = loaded if loaded.number else None
        except Error as error:
            outcome = error
    session.barrier("gradlane.checkpoint.loaded", seconds)
    outcome = broadcast_object(outcome, lowest, "gradlane.checkpoint.resume")
    if isinstance(outcome, Error):
        raise outcome
    return outcome


def run(train: Callable[[], T], *, timeout: float = TIMEOUT) -> T:
    """Calls `train`, and again whenever a server was lost with what it kept (`on_server_loss=restore`). All workers call it.

    Between two calls, the job forms again with the members that are left and a server that comes for the lost one. For a
    worker that does not come back within `reform_timeout` the others do not wait. Ranks may be others than before, if workers
    were lost too. Without that setting, and in a job without servers of its own, `train` is called once.

    It returns when `train` has returned on all workers, so that none leaves the job while others may have to go back.

    Args:
        train: makes its models, optimizers and parameters, goes back with `resume`, and trains. Nothing of Gradlane that was
            made in an earlier call is of use in the next one.
        timeout: seconds that this worker waits for the others behind `train`.
    Returns:
        What the last call of `train` has returned.
    Raises:
        NotFormedError: the job was to form again, and no server is left, or too few workers came. This process is in no job
            then.
        StallError: other workers are still in `train`.
        Exception: any other error of `train`.
    """
    from gradlane import elastic

    seconds = _seconds(timeout)
    # Where parameters live on servers, workers come to a job only when all others begin anew, too.
    _session.end_newcomer()
    while True:
        try:
            value = train()
            if _session.is_initialized() and not elastic.has_left():
                _session.session().barrier("gradlane.checkpoint.run", seconds)
            return value
        except StateLostError:
            # Not here, because the error keeps what `train` has made.
            pass
        leaves = elastic.is_asked_to_leave()
        _session.begin_anew()
        if leaves:
            elastic.leave()


class Saver:
    """Saves a checkpoint every so many steps, without making the training wait.

        saver = gl.checkpoint.Saver("runs/a", every=1000, keep=3)
        for step in range(steps):
            ...
            saver.step(step)
        saver.close()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        every: int,
        keep: int | None = None,
        tables_apart: bool = False,
        timeout: float = TIMEOUT,
    ) -> None:
        """
        Args:
            path: as for `save`.
            every: after how many calls of `step` a checkpoint is saved.
            keep: as for `save`.
            tables_apart: as for `save`.
            timeout: seconds for one save.
        """
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise InvalidArgumentError(f"every={every!r}; give a number of steps, at least 1")
        self._arguments: dict[str, Any] = {"path": _path(path), "keep": keep, "tables_apart": tables_apart}
        self._arguments["timeout"] = _seconds(timeout)
        self._every = every
        self._calls = 0
        self._saving: Saving | None = None

    def step(self, extra: Any = None) -> Saving | None:
        """Counts a step, and begins to save when it is time. If the save before still goes on, this one is left out.

        Returns:
            The handle of the save that has begun; None if there is none.
        Raises:
            Error: the save before has failed, as `save` says.
        """
        self._calls += 1
        if self._calls % self._every != 0 or (self._saving is not None and not self._saving.done()):
            return None
        self.close()
        self._saving = save(async_=True, extra=extra, **self._arguments)
        return self._saving

    def close(self) -> Checkpoint | None:
        """Waits for the last save.

        Returns:
            The last checkpoint; None if none was saved since the last call.
        Raises:
            Error: it has failed, as `save` says.
        """
        saving, self._saving = self._saving, None
        return None if saving is None else saving.wait()


def _load(
    path: str | os.PathLike[str], number: int | None, missing: Missing, what: tuple[bool, bool, bool], timeout: float
) -> Checkpoint:
    """Loads as `load`. `what`: ignore_extra, optimizer, and whether a directory without any checkpoint is no error."""
    if missing not in ("error", "init", "zero"):
        raise InvalidArgumentError(f"missing={missing!r}; give 'error', 'init' or 'zero'")
    return _told(_core.load_checkpoint(_session.session(), _path(path), number, missing, what, _seconds(timeout)))


def _told(told: tuple[int, str, int, int, int, list[tuple[int, int]], str]) -> Checkpoint:
    number, directory, tensors, size, files, steps, notes = told
    return Checkpoint(number, directory, tensors, size, files, dict(steps), extra_of(notes))


def _path(path: str | os.PathLike[str]) -> str:
    try:
        given = os.fspath(path)
    except TypeError:
        given = None
    if not isinstance(given, str) or not given:
        raise InvalidArgumentError(f"path={path!r}; give the directory of the checkpoints as text or as a path")
    return given


def _notes(extra: Any) -> str:
    import json

    try:
        return "" if extra is None else json.dumps(extra, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"extra: {error}; give what JSON can say") from error


def _seconds(timeout: float) -> float:
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not math.isfinite(timeout) or timeout <= 0:
        raise InvalidArgumentError(f"timeout={timeout!r}; give seconds, above 0")
    return float(timeout)
