"""How fast rows of tables are read and changed, beside the memory of this machine and beside Redis.

gradlane run -n 1 -s 1 -- python bench/tables.py                  4,096 and 65,536 ids, rows of 16, 64 and 128, evenly and by Zipf
gradlane run -n 1 -s 2 -- python bench/tables.py --redis 6379     with a Redis that listens there on the loopback (redis-server)
python bench/tables.py                                            without servers: what a worker alone keeps itself
... --turns 3 --universe 100000                                   tries it out

Each row takes all ways in turns, and checks what was read. `take` copies the same rows out of an array of NumPy: what this machine's memory
gives one thread. Redis has each row as a string: `MGET` and `MSET` of all distinct ids in one request. A push of ours computes
Adagrad, a `MSET` replaces values.

A line tells ids, elements of a row and how the ids are spread; then for each way the median time of a turn, the time that 99 of 100 turns
stay below, and rows a second by the median; then the median, over the turns, of the shares of pull and push in the time of `take`, and of
Redis in theirs. In the end stands the memory that servers take for a row.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import time
from collections.abc import Callable

import gradlane
import numpy as np
from gradlane import rules
from gradlane.tables import Table

COUNTS = (4096, 65_536)
DIMS = (16, 64, 128)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=25, help="of each row (default 25)")
    parser.add_argument("--universe", type=int, default=1_000_000, help="ids that there are (default a million)")
    parser.add_argument("--redis", type=int, metavar="PORT", help="of a Redis on 127.0.0.1 to compare with; its keys are removed")
    options = parser.parse_args()
    gradlane.init()
    random = np.random.default_rng(1)
    for dim in DIMS:
        table = Table(f"rows of {dim}", dim, rule=rules.Adagrad(lr=0.01), init="uniform", scale=0.1)
        for begin in range(0, options.universe, 1 << 16):
            table.pull(np.arange(begin, min(begin + (1 << 16), options.universe)))
        for count in COUNTS:
            for spread in ("even", "zipf"):
                measure(table, ids_of(random, count, spread, options.universe), spread, options)
        counts = table.stats()
        numbers = 2 * 4 * dim
        print(f"rows of {dim}: {counts.bytes / counts.rows:.1f} bytes each, {numbers} of them values and moments", flush=True)
        table.clear()
    gradlane.shutdown()
    return 0


def ids_of(random: np.random.Generator, count: int, spread: str, universe: int) -> np.ndarray:
    """Ids below the universe: evenly, or the rank of each as Zipf's law with the exponent 1.05 says."""
    if spread == "even":
        return random.integers(0, universe, count)
    weights = 1.0 / np.arange(1, universe + 1) ** 1.05
    return np.searchsorted(np.cumsum(weights / weights.sum()), random.random(count)).astype(np.int64)


def measure(table: Table, ids: np.ndarray, spread: str, options: argparse.Namespace) -> None:
    gradients = np.full((len(ids), table.dim), 1e-6, np.float32)
    memory = np.empty((options.universe, table.dim), np.float32)
    memory[:] = 1.0
    rows = np.empty_like(gradients)
    ways: dict[str, Callable[[], object]] = {
        "take": lambda: np.take(memory, ids, axis=0, out=rows),
        "pull": lambda: table.pull(ids, out=rows),
        "push": lambda: table.push(ids, gradients),
    }
    if options.redis is not None:
        redis = Redis(options.redis, np.unique(ids), table.dim)
        ways |= {"mget": redis.get, "mset": redis.put}
        redis.put()
    table.pull(ids)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(options.turns):
        for way, run in ways.items():
            begun = time.perf_counter()
            run()
            times[way].append(time.perf_counter() - begun)
    assert (table.look(ids) == table.look(ids)).all() and np.isfinite(rows).all()
    told = [f"{way} {1e3 * statistics.median(of):.2f} ms, {1e3 * float(np.quantile(of, 0.99)):.2f}, {len(ids) / statistics.median(of) / 1e6:.2f} M/s"
            for way, of in times.items()]
    share = lambda one, other: statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))
    shares = [f"take/pull {share('take', 'pull'):.2f}", f"take/push {share('take', 'push'):.2f}"]
    if options.redis is not None:
        shares += [f"mget/pull {share('mget', 'pull'):.2f}", f"mset/push {share('mset', 'push'):.2f}"]
        redis.close()
    print(f"{len(ids):>6} ids of {table.dim:>3}, {spread}: {'; '.join(told)}; {', '.join(shares)}", flush=True)


class Redis:
    """Rows in a Redis, in its own protocol, because a client library costs more than what it is asked."""

    def __init__(self, port: int, ids: np.ndarray, dim: int) -> None:
        self._keys = [b"gl:%d" % one for one in ids]
        self._value = np.ones(dim, np.float32).tobytes()
        self._link = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer = self._link.makefile("rb")

    def get(self) -> None:
        self._ask([b"MGET", *self._keys])
        assert self._answer.readline() == b"*%d\r\n" % len(self._keys)
        line = len(b"$%d\r\n" % len(self._value)) + len(self._value) + 2
        assert len(self._answer.read(line * len(self._keys))) == line * len(self._keys)

    def put(self) -> None:
        self._ask([b"MSET", *(word for key in self._keys for word in (key, self._value))])
        assert self._answer.readline() == b"+OK\r\n"

    def close(self) -> None:
        self._ask([b"UNLINK", *self._keys])
        self._answer.readline()
        self._link.close()

    def _ask(self, words: list[bytes]) -> None:
        self._link.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))


if __name__ == "__main__":
    sys.exit(main())
