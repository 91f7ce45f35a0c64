"""Memory of a tensor that the caller has dropped is not given to another one while the engine uses it."""

from __future__ import annotations

import gradlane.torch as gl
from places import IS_SHORT, another_stream, full, settle
from telling import passed

ROUNDS = 30 if IS_SHORT else 1000
SIZES = (256, 70_000) if IS_SHORT else (256, 70_000, 3_000_000)
"""Elements: a part shared with others, a part, several parts."""

GARBAGE = -1e9


def reuse() -> None:
    """Submits a temporary, deletes it, and has another stream refill the memory that PyTorch gives out next."""
    total = sum(range(1, gl.size() + 1))
    for number in range(ROUNDS):
        count, in_place, value = SIZES[number % len(SIZES)], number % 2 == 0, float(number % 50)
        begin = gl.push_pull_async_ if in_place else gl.push_pull_async
        temporary = full(count, (gl.rank() + 1.0) * value)
        handle = begin(temporary, f"temporary {count} {in_place}", op=gl.Sum)
        del temporary
        # In the stream of the temporary, as PyTorch keeps what is freed for the stream that it was made in. Where the
        # operation is not in place, its copy may still be read in that stream from memory that is given out here.
        refilled = [full(count, 0.0) for _ in range(4)]
        with another_stream():
            for tensor in refilled:
                tensor.fill_(GARBAGE)
        result = handle.wait()
        wrong = int((result != total * value).sum())
        assert wrong == 0, f"round {number}: {wrong} of {count} elements are not {total * value}"
        settle()
        assert all(((tensor == GARBAGE) | (tensor == 0.0)).all() for tensor in refilled), f"round {number}: late writes"
        del handle, result, refilled
    passed(f"in {ROUNDS} rounds no temporary that was deleted lost its values, and nothing was written after its end")


reuse_expandable = reuse
"""The same with another allocator of PyTorch."""
