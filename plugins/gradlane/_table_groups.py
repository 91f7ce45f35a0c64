"""Tables that servers keep as one, so that a use of all of them is one exchange with each server."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gradlane._table_changes import arrays
from gradlane.errors import InvalidArgumentError

if TYPE_CHECKING:
    from gradlane.tables import Pending, Table

Use = Callable[[Any], "Pending[Any]"]


class Group:
    """Tables of one kind that servers keep as one table, whose ids are cut into a range for each.

    A model with many tables, such as one for each column of its input, reads and changes them all in one exchange with each server:

        group = Group("features", {"user": 10_000_000, "item": 500_000}, 16, rule=rules.Adagrad(lr=0.1))
        rows = group.pull({"user": users, "item": items})
        group.push({"user": (users, of_users), "item": (items, of_items)})

    `group["user"]` is one of them. What concerns all rows, such as `stats`, `shrink`, `save` and `load`, is done with `group.table`, in which
    the row of an id stands at `group.ranges[member].start + id`.
    """

    def __init__(self, name: str, members: Mapping[str, int], dim: int, **settings: Any) -> None:
        """Describes the table. Servers hear of it with its first use.

        Args:
            name: of the table; equal on all workers, as all that follows.
            members: for each table how many ids it has, which are below that; in the order in which their ranges follow each other. They take no
                memory: only ids that were used have rows. A job that goes on from a snapshot has the members that were saved.
            dim: as for `Table`, like all that follows.
            settings: others of the table.
        Raises:
            InvalidArgumentError: there are no members, or they have no ids, or 2^63 and more together; or another argument is not what it
                should be.
        """
        from gradlane.tables import Table

        if not isinstance(members, Mapping) or not members:
            raise InvalidArgumentError(f"members={members!r:.100}; give each table by name, with how many ids it has")
        self.ranges: dict[str, range] = {}
        """The ids of each member in `table`."""
        end = 0
        for member, count in members.items():
            if not isinstance(member, str) or isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise InvalidArgumentError(f"members: {member!r}: {count!r}; give a name, and how many ids it has, 1 or above")
            self.ranges[member] = range(end, end + count)
            end += count
        if end >= 1 << 63:
            raise InvalidArgumentError(f"members: {end} ids together; give less than 2**63")
        said = "".join(f"{len(member)}:{member}={len(ids)}," for member, ids in self.ranges.items())
        fingerprint = int.from_bytes(hashlib.sha256(said.encode()).digest()[:8], "little") | 1
        self.table: Table = Table(name, dim, members=fingerprint, **settings)
        """The table that servers keep."""

    def __getitem__(self, member: str) -> Member:
        """The table of this name.

        Raises:
            InvalidArgumentError: there is none.
        """
        self._range_of(member)
        return Member(self, member)

    def __repr__(self) -> str:
        """Its members, and the table."""
        return f"Group({list(self.ranges)}, {self.table!r})"

    def pull(self, ids: Mapping[str, Any], *, priority: int = 0, timeout: float | None = None) -> dict[str, Any]:
        """Read rows of several tables for training: an id without a row gets one, if the table admits it.

        Args:
            ids: for each table those that are wanted: int64 of any shape on the CPU, or a list of int; they may come several times.
            priority: as for `Table.pull`.
            timeout: as for `Table.pull`.
        Returns:
            For each table float32 of the shape of its ids and `dim`: a tensor of PyTorch if its ids are one, otherwise an array of NumPy. All
            lie in one memory.
        Raises:
            InvalidArgumentError: an id is not below what its table has, or as `Table.pull`.
            UnsupportedError: NumPy is not installed.
            FailedPreconditionError, MismatchError: as `Table.pull`.
        """
        return self.pull_async(ids, priority=priority, timeout=timeout).wait()

    def pull_async(self, ids: Mapping[str, Any], *, priority: int = 0, timeout: float | None = None) -> Pending[dict[str, Any]]:
        """Like `pull`, but returns at once; see `Table.pull_async`."""
        return self._read(ids, lambda joined: self.table.pull_async(joined, priority=priority, timeout=timeout))

    def look(self, ids: Mapping[str, Any], *, priority: int = 0, timeout: float | None = None) -> dict[str, Any]:
        """Read rows for evaluation, as `pull`. It makes no row and changes nothing; see `Table.look`."""
        return self._read(ids, lambda joined: self.table.look_async(joined, priority=priority, timeout=timeout)).wait()

    def push(
        self,
        uses: Mapping[str, tuple[Any, Any]],
        *,
        step: int | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Change rows of several tables by gradients, as the rule says. It is one push of `table`, and all of it is counted as one step.

        Args:
            uses: for each table ids as for `pull`, and float32 of their shape and `dim`. Gradients of an id that comes several times are
                added up first.
            step: as for `Table.push`.
            priority: as for `Table.pull`.
            timeout: as for `Table.pull`.
        Raises:
            NotFiniteError: a gradient is infinite or not a number; nothing was sent.
            InvalidArgumentError, UnsupportedError, FailedPreconditionError, MismatchError: as `pull`; or a gradient of another shape or dtype.
        """
        self.push_async(uses, step=step, priority=priority, timeout=timeout).wait()

    def push_async(
        self,
        uses: Mapping[str, tuple[Any, Any]],
        *,
        step: int | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Pending[None]:
        """Like `push`, but returns once the gradients were read."""
        numpy = arrays()
        joined, wanted = self._joined({member: ids for member, (ids, _) in uses.items()})
        gradients = numpy.empty((len(joined), self.table.dim), numpy.float32)
        at = 0
        for (member, _, ids), (_, given) in zip(wanted, uses.values(), strict=True):
            of_member = numpy.asarray(given)
            shape = (*ids, self.table.dim)
            if of_member.dtype != numpy.float32 or of_member.shape != shape:
                raise InvalidArgumentError(
                    f"gradients of {member}: {of_member.dtype} of shape {list(of_member.shape)}; give float32 of shape {list(shape)}"
                )
            count = of_member.size // self.table.dim
            gradients[at : at + count] = of_member.reshape(count, self.table.dim)
            at += count
        return self.table.push_async(joined, gradients, step=step, priority=priority, timeout=timeout)

    def _range_of(self, member: str) -> range:
        found = self.ranges.get(member)
        if found is None:
            raise InvalidArgumentError(f"group {self.table.name} has no table {member!r}; it has {', '.join(self.ranges)}")
        return found

    def _joined(self, ids: Mapping[str, Any]) -> tuple[Any, list[tuple[str, Any, tuple[int, ...]]]]:
        """All ids as the table has them, and of each member what was given, with its shape."""
        numpy = arrays()
        if not isinstance(ids, Mapping):
            raise InvalidArgumentError(f"group {self.table.name}: {ids!r:.100}; give ids for each table, by its name")
        parts, given = [numpy.empty(0, numpy.int64)], []
        for member, of_member in ids.items():
            those = self._range_of(member)
            try:
                wanted = numpy.asarray(of_member)
            except (TypeError, ValueError, OverflowError):
                raise InvalidArgumentError(f"ids of {member}: {of_member!r:.100}; give int64 on the CPU, or a list of int") from None
            if wanted.size == 0:
                wanted = wanted.astype(numpy.int64)
            if wanted.dtype not in (numpy.int64, numpy.uint64):
                raise InvalidArgumentError(f"ids of {member}: {wanted.dtype}; give int64 on the CPU, or a list of int")
            outside = wanted[(wanted < 0) | (wanted >= len(those))]
            if outside.size:
                raise InvalidArgumentError(f"table {member} of group {self.table.name} has no id {outside.flat[0]}; give ids below {len(those)}")
            parts.append(wanted.reshape(-1).astype(numpy.int64) + those.start)
            given.append((member, of_member, wanted.shape))
        return numpy.concatenate(parts), given

    def _read(self, ids: Mapping[str, Any], use: Use) -> Pending[dict[str, Any]]:
        joined, given = self._joined(ids)

        def cut(rows: Any) -> dict[str, Any]:
            found, at = {}, 0
            for member, of_member, shape in given:
                count = math.prod(shape)
                of_rows = rows[at : at + count].reshape(*shape, self.table.dim)
                found[member], at = _like(of_member, of_rows), at + count
            return found

        return use(joined).then(cut)


class Member:
    """One table of a group, with ids from 0."""

    def __init__(self, group: Group, name: str) -> None:
        """Made by `group[name]`."""
        self.group, self.name = group, name

    @property
    def dim(self) -> int:
        """The elements of a row."""
        return self.group.table.dim

    def __len__(self) -> int:
        """How many ids it has."""
        return len(self.group.ranges[self.name])

    def pull(self, ids: Any, *, priority: int = 0, timeout: float | None = None) -> Any:
        """Read rows for training; see `Group.pull`."""
        return self.group.pull({self.name: ids}, priority=priority, timeout=timeout)[self.name]

    def look(self, ids: Any, *, priority: int = 0, timeout: float | None = None) -> Any:
        """Read rows for evaluation; see `Group.look`."""
        return self.group.look({self.name: ids}, priority=priority, timeout=timeout)[self.name]

    def push(self, ids: Any, gradients: Any, *, step: int | None = None, priority: int = 0, timeout: float | None = None) -> None:
        """Change rows by gradients; see `Group.push`."""
        self.group.push({self.name: (ids, gradients)}, step=step, priority=priority, timeout=timeout)


def _like(given: Any, rows: Any) -> Any:
    """The rows, as a tensor of PyTorch if the ids are one."""
    torch = sys.modules.get("torch")
    return torch.from_numpy(rows) if torch is not None and isinstance(given, torch.Tensor) else rows
