"""The C interface from Python by ctypes alone: the library needs neither the package nor Python's own interface."""

import sys
from pathlib import Path

from processes import run_all

BUILT = Path(__file__).parents[2].glob("target/*/libgradlane_session.so")
LIBRARY = max(BUILT, key=lambda path: path.stat().st_mtime, default=Path("libgradlane_session.so"))
"""Built with the package, as a release or for tests."""

WORKER = """
import ctypes, sys
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

class Error(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("text", c_void_p), ("text_capacity", c_size_t), ("text_bytes", c_size_t),
        ("status", c_int32), ("retryable", c_int32),
    ]

class Submission(Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("name", c_char_p), ("shape", POINTER(c_uint64)), ("dimensions", c_size_t),
        ("codec", c_char_p), ("source", c_void_p), ("destination", c_void_p), ("bytes", c_size_t),
        ("source_stream", c_uint64), ("destination_stream", c_uint64), ("timeout_ms", c_uint64), ("weight", c_double),
        ("dtype", c_uint32), ("op", c_uint32), ("root", c_uint32), ("priority", c_int32), ("memory", c_uint32),
        ("device", c_uint32), ("callback", c_void_p), ("user", c_void_p), ("members", POINTER(c_uint32)),
        ("member_count", c_size_t), ("has_receiver", c_uint32), ("receiver", c_uint32),
    ]

FLOAT64, WEIGHTED_MEAN, SUM, INVALID_ARGUMENT, FOREVER = 2, 5, 1, 2, 2**64 - 1
library = ctypes.CDLL(sys.argv[1])
assert library.gradlane_abi_version() == 1
text = ctypes.create_string_buffer(1024)
error = Error(ctypes.sizeof(Error), ctypes.addressof(text), len(text))

def must(status):
    assert status == 0, text.value.decode()

session, rank, size = c_uint64(), c_uint32(), c_uint32()
must(library.gradlane_init(None, c_size_t(0), byref(session), byref(error)))
must(library.gradlane_rank(session, byref(rank), byref(error)))
must(library.gradlane_size(session, byref(size), byref(error)))

def submit(values, name, **fields):
    shape = (c_uint64 * 1)(len(values))
    submission = Submission(
        ctypes.sizeof(Submission), name=name, shape=shape, dimensions=1, source=ctypes.addressof(values),
        bytes=ctypes.sizeof(values), **fields,
    )
    operation = c_uint64()
    return library.gradlane_submit(session, byref(submission), byref(operation), byref(error)), operation

values = (c_double * 1000)(*(i * (rank.value + 1) for i in range(1000)))
status, operation = submit(values, b"values", dtype=FLOAT64, op=SUM)
must(status)
must(library.gradlane_wait(operation, c_uint64(FOREVER), byref(error)))
must(library.gradlane_release(operation, byref(error)))
ranks = size.value * (size.value + 1) // 2
assert list(values) == [i * ranks for i in range(1000)]

values = (c_double * 2)(float(rank.value), 8.0)
status, operation = submit(values, b"mean", dtype=FLOAT64, op=WEIGHTED_MEAN, weight=1.0 + 2.0 * rank.value)
must(status)
must(library.gradlane_wait(operation, c_uint64(FOREVER), byref(error)))
assert list(values) == [0.75, 8.0], list(values)  # (1 * 0 + 3 * 1) / 4

# Among some workers: each of the two has a set of its own. Then for one receiver.
own = (c_uint32 * 1)(rank)
values = (c_double * 2)(3.0, 4.0 + rank.value)
status, operation = submit(values, b"own %d" % rank.value, dtype=FLOAT64, op=SUM, members=own, member_count=1)
must(status)
must(library.gradlane_wait(operation, c_uint64(FOREVER), byref(error)))
assert list(values) == [3.0, 4.0 + rank.value]

values = (c_double * 2)(1.0, float(rank.value))
status, operation = submit(values, b"to 1", dtype=FLOAT64, op=SUM, has_receiver=1, receiver=1)
must(status)
must(library.gradlane_wait(operation, c_uint64(FOREVER), byref(error)))
assert list(values) == ([2.0, 1.0] if rank.value == 1 else [1.0, 0.0]), list(values)

others = (c_uint32 * 1)(1 - rank.value)
status, operation = submit(values, b"of others", dtype=FLOAT64, op=SUM, members=others, member_count=1)
must(status)
status = library.gradlane_wait(operation, c_uint64(FOREVER), byref(error))
assert status == error.status == INVALID_ARGUMENT and b"tensor of others belongs to" in text.value, text.value
must(library.gradlane_release(operation, byref(error)))

status, _ = submit(values, b"other", dtype=99, op=SUM)
assert status == error.status == INVALID_ARGUMENT
assert b"tensor other: dtype 99; use a value of GradlaneDtype" in text.value, text.value

must(library.gradlane_shutdown(session, c_uint64(10_000), byref(error)))
assert not any(name.startswith("gradlane") for name in sys.modules)
print("exact")
"""


def test_two_processes_sum_by_ctypes_alone(tmp_path):
    def environment(rank):
        ranks = dict.fromkeys(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"), str(rank))
        sizes = dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), "2")
        return ranks | sizes | {"GRADLANE_STATE_DIR": str(tmp_path)}

    commands = [([sys.executable, "-c", WORKER, str(LIBRARY)], environment(rank)) for rank in range(2)]
    ended = run_all(commands, timeout=60)
    assert [(process.code, process.output) for process in ended] == [(0, "exact\n")] * 2


FORK = """
import ctypes, os, sys
from ctypes import byref, c_size_t, c_uint32, c_uint64

library = ctypes.CDLL(sys.argv[1])
session, rank = c_uint64(), c_uint32(7)
assert library.gradlane_init(None, c_size_t(0), byref(session), None) == 0
child = os.fork()
if child == 0:
    FAILED_PRECONDITION = 4
    calls = [
        library.gradlane_rank(session, byref(rank), None),
        library.gradlane_barrier(session, b"end", c_uint64(0), None),
        library.gradlane_shutdown(session, c_uint64(0), None),
    ]
    os._exit(0 if calls == [FAILED_PRECONDITION] * 3 and rank.value == 7 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert library.gradlane_rank(session, byref(rank), None) == 0 and rank.value == 0
assert library.gradlane_shutdown(session, c_uint64(0), None) == 0
"""


def test_a_forked_child_is_refused_its_parents_session():
    [ended] = run_all([([sys.executable, "-c", FORK, str(LIBRARY)], {})], timeout=60)
    assert ended.code == 0, ended.output


FORKS = """
import ctypes, os, signal, sys, threading
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_size_t, c_uint32, c_uint64, c_void_p, sizeof

library = ctypes.CDLL(sys.argv[1])
FAILED_PRECONDITION, FOREVER = 4, 2**64 - 1

class Submission(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("shape", POINTER(c_uint64)), ("dimensions", c_size_t),
                ("codec", c_char_p), ("source", c_void_p), ("destination", c_void_p), ("bytes", c_size_t),
                ("source_stream", c_uint64), ("destination_stream", c_uint64), ("timeout_ms", c_uint64),
                ("weight", c_double), ("dtype", c_uint32), ("op", c_uint32), ("root", c_uint32), ("priority", c_int32),
                ("memory", c_uint32), ("device", c_uint32), ("callback", c_void_p), ("user", c_void_p),
                ("members", POINTER(c_uint32)), ("member_count", c_size_t), ("has_receiver", c_uint32),
                ("receiver", c_uint32)]

def began():
    session = c_uint64()
    assert library.gradlane_init(None, c_size_t(0), byref(session), None) == 0
    return session

def summed(session):
    values, shape, operation = (c_double * 3)(1, 2, 3), (c_uint64 * 1)(3), c_uint64()
    given = Submission(struct_size=sizeof(Submission), name=b"values", shape=shape, dimensions=1, dtype=2, op=1,
                       source=ctypes.addressof(values), bytes=24)
    assert library.gradlane_submit(session, byref(given), byref(operation), None) == 0
    assert library.gradlane_wait(operation, c_uint64(FOREVER), None) == 0 and list(values) == [1, 2, 3]
    return operation

session = began()
kept = summed(session)
stopping = False

def busy():  # holds the locks of the tables most of the time
    while not stopping:
        library.gradlane_release(summed(session), None)

threads = [threading.Thread(target=busy) for _ in range(2)]
[thread.start() for thread in threads]
for _ in range(40):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        calls = [library.gradlane_poll(kept, None), library.gradlane_wait(kept, c_uint64(FOREVER), None),
                 library.gradlane_cancel(kept, None), library.gradlane_release(kept, None),
                 library.gradlane_shutdown(session, c_uint64(0), None)]
        own = began()  # a job of its own works, and its numbers are others
        operation = summed(own)
        is_other = own.value != session.value and operation.value != kept.value
        library.gradlane_shutdown(own, c_uint64(0), None)
        os._exit(0 if calls == [FAILED_PRECONDITION] * 5 and is_other else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stopping = True
[thread.join() for thread in threads]
assert library.gradlane_poll(kept, None) == 0 and library.gradlane_release(kept, None) == 0
assert library.gradlane_shutdown(session, c_uint64(0), None) == 0
print("exact")
"""


def test_children_are_refused_while_other_threads_hold_the_locks_and_may_begin_a_job_of_their_own():
    [ended] = run_all([([sys.executable, "-c", FORKS, str(LIBRARY)], {})], timeout=120)
    assert (ended.code, ended.output) == (0, "exact\n")


def test_the_library_is_linked_without_python():
    imports = LIBRARY.read_bytes()
    assert b"libpython" not in imports and b"PyObject_" not in imports and b"Py_Initialize" not in imports
