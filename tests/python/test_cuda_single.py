"""Arrays on CUDA devices in a job of one, and where there is no driver."""

from pathlib import Path

import pytest
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


LOOKS = """
import gradlane, numpy as np
from fakecuda import LAG_SECONDS, Array, Tensor, counter, user_stream
gradlane.init()

def there(kind, special=None):
    values = np.ones(100_003, np.float32)
    if special is not None:
        values[-1] = special
    stream = user_stream(lag_seconds=LAG_SECONDS)
    if kind == "bfloat16":
        return Tensor((values.view(np.uint32) >> 16).astype(np.uint16), stream=stream, is_bfloat16=True)
    return values if kind == "host" else Array(values.astype(kind), stream=stream)

def told(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except gradlane.NotFiniteError as error:
        print(error.tensor, error.round, error.worker)
"""

TOLD = LOOKS + """
kinds = "host", "float16", "bfloat16", "float32", "float64"
for kind, special in zip(kinds, (np.nan, np.inf, -np.inf, np.nan, -np.inf)):
    for number in range(3):
        told(gradlane.push_pull, there(kind, special if number else None), kind)
    told(gradlane.push_pull, there(kind), kind)
    told(gradlane.broadcast, there(kind, np.nan), 0, "bits of " + kind)
print("found", gradlane.metrics()["not_finite"])
"""


def test_alone_in_a_job_an_error_names_tensor_and_round_and_the_next_round_is_made():
    ended = run_here(TOLD, LIBRARY, nan_check="error")
    kinds = ["host", "float16", "bfloat16", "float32", "float64"]
    expected = [f"{kind} {number} worker 0" for kind in kinds for number in (1, 2)]
    assert ended.code == 0 and ended.output.splitlines() == [*expected, "found 10"], ended.output


GROUP = LOOKS + """
for special in (np.nan, None):
    arrays = [there("float32"), there("float32", special)]
    outs = [Array(np.zeros(100_003, np.float32)) for _ in arrays]
    told(gradlane.grouped_push_pull, arrays, "all", out=outs)
    print([int(out.seen_by(user_stream()).sum()) for out in outs])
"""


def test_alone_in_a_job_a_group_is_copied_whole_or_not_at_all():
    ended = run_here(GROUP, LIBRARY, nan_check="error")
    expected = ["all.1 0 worker 0", "[0, 0]", "[100003, 100003]"]
    assert ended.code == 0 and ended.output.splitlines() == expected, ended.output


PASSES = LOOKS + """
out = Array(np.zeros(100_003, np.float32))
gradlane.push_pull(there("float32", np.nan), "passes", out=out)
seen = out.seen_by(user_stream())
print(np.isnan(seen).sum(), np.nansum(seen), gradlane.metrics()["not_finite"], counter("kernels"))
"""


@pytest.mark.parametrize(("setting", "found", "kernels"), [("warn", 1, 1), ("off", 0, 0)])
def test_alone_in_a_job_a_warning_lets_it_pass_and_without_the_setting_nothing_looks(setting, found, kernels):
    ended = run_here(PASSES, LIBRARY, nan_check=setting)
    assert ended.code == 0 and ended.output.splitlines()[-1] == f"1 100002.0 {found} {kernels}", ended.output
    blames = "tensor passes, round 0: what worker 0 contributes has a NaN" in ended.output
    assert blames == (setting == "warn"), ended.output


def run_here(script, library, **settings):
    environment = {f"GRADLANE_{name.upper()}": value for name, value in settings.items()}
    places = {"GRADLANE_CUDA_LIB": library, "PYTHONPATH": str(Path(__file__).parent)}
    return run_python(script, env=environment | places)
