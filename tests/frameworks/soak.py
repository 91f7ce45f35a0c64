"""What the soak tests of the frameworks share: threads that reduce at once, and a deadline for all of them."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback

ROUNDS = int(os.environ.get("SOAK_ROUNDS", "300"))
"""How often each thread reduces. `make test-soak` asks for more."""

SECONDS = 60.0 + ROUNDS * 0.05
"""The deadline for all threads of one test; a round takes about a millisecond."""

THREADS = (2, 3, 4)
TRANSPORTS = ("local", "shm", "quic")

LENGTHS = (3, 20_000)
"""Elements of the two arrays of a round: one that travels with its message, and one that has parts of its own."""


def value_and_sum(number, thread, rank):
    """What each element of the worker with this rank is in a round, and the sum over two workers; both are exact."""
    value = float(10 * (number % 1000) + thread)
    return value + 10_000 * rank, 2 * value + 10_000


def at_once(body, threads):
    """Runs `body(0)`, `body(1)`, ... in threads; fails with the first error, or if a thread does not end in time."""
    errors = []

    def run(thread):
        try:
            body(thread)
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=run, args=(thread,), daemon=True) for thread in range(threads)]
    for thread in started:
        thread.start()
    due = time.monotonic() + SECONDS
    for thread in started:
        thread.join(max(0.0, due - time.monotonic()))
    if errors:
        raise errors[0]
    frames = sys._current_frames()
    hanging = ["".join(traceback.format_stack(frames[t.ident], 4)) for t in started if t.is_alive()]
    assert not hanging, f"{len(hanging)} of {threads} threads have not ended after {SECONDS} s:\n" + "\n".join(hanging)
