"""Arrays on CUDA devices in a job of one, and where there is no driver."""

from pathlib import Path

from fakecuda import LIBRARY
from processes import run_python

WITHOUT_PEERS = """
import gradlane, numpy as np
from fakecuda import LAG_SECONDS, Array, counter, user_stream
gradlane.init()
assert gradlane.size() == 1
array = Array(np.arange(5.0), stream=user_stream(lag_seconds=LAG_SECONDS))
gradlane.push_pull(array, "in place")
assert counter("copies_d2d") == counter("copies_d2h") == 0
out = Array(np.zeros(5), stream=user_stream())
gradlane.push_pull(array, "elsewhere", out=out)
print(counter("copies_d2d"), counter("copies_d2h"), out.seen_by(user_stream()).tolist())
gradlane.shutdown()
"""


def test_alone_in_a_job_nothing_is_done_in_place_and_the_device_copies_elsewhere():
    ended = run_here(WITHOUT_PEERS, LIBRARY)
    assert ended.code == 0 and ended.output.splitlines()[-1] == "1 0 [0.0, 1.0, 2.0, 3.0, 4.0]", ended.output


PARAMETER = """
import gradlane, numpy as np
from fakecuda import Array
from gradlane import parameters
gradlane.init()
try:
    parameters.init("w", Array(np.arange(5.0)))
except gradlane.FailedPreconditionError as error:
    print(error)
"""


def test_alone_in_a_job_a_parameter_in_memory_of_a_device_needs_a_server():
    ended = run_here(PARAMETER, LIBRARY)
    assert ended.code == 0 and "start the job with a server" in ended.output, ended.output


WITHOUT_DRIVER = """
import gradlane, numpy as np
from test_cuda_buffers import Interface
gradlane.init()
for _ in range(2):
    try:
        gradlane.push_pull(Interface(), "no driver")
    except gradlane.UnavailableError as error:
        print(error)
"""


def test_without_a_driver_the_error_says_what_was_searched():
    ended = run_here(WITHOUT_DRIVER, "/nowhere/libcuda.so.1")
    lines = ended.output.splitlines()
    assert ended.code == 0 and len(lines) == 2 and all("/nowhere/libcuda.so.1" in line for line in lines), ended.output


def run_here(script, library):
    return run_python(script, env={"GRADLANE_CUDA_LIB": library, "PYTHONPATH": str(Path(__file__).parent)})
