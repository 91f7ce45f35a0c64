"""The stand-ins for NVIDIA's libraries do not forgive what the real ones may not."""

import re
import signal

import fakecuda
import pytest
from processes import run_python

USED_AFTER_ITS_END = """
import ctypes, fakecuda
handle = ctypes.c_void_p()
fakecuda.in_context(0, "{create}", ctypes.byref(handle), *{arguments})
fakecuda.in_context(0, "{destroy}", handle)
print("destroyed", flush=True)
with __import__("contextlib").suppress(AssertionError):
    fakecuda.in_context(0, "{use}", {used})
print("went on", flush=True)
"""
STREAM = {"create": "cuStreamCreate", "arguments": "(1,)", "destroy": "cuStreamDestroy_v2"}
EVENT = {"create": "cuEventCreate", "arguments": "(2,)", "destroy": "cuEventDestroy_v2"}
USES = [
    STREAM | {"use": "cuStreamQuery", "used": "handle"},
    STREAM | {"use": "cuStreamDestroy_v2", "used": "handle"},
    STREAM | {"use": "cuStreamIsCapturing", "used": "handle, ctypes.byref(ctypes.c_int())"},
    EVENT | {"use": "cuEventQuery", "used": "handle"},
    EVENT | {"use": "cuEventDestroy_v2", "used": "handle"},
    EVENT | {"use": "cuEventRecord", "used": "handle, None"},
    EVENT | {"use": "cuStreamWaitEvent", "used": "None, handle, 0"},
]


@pytest.mark.parametrize("uses", USES, ids=lambda uses: uses["use"])
def test_a_stream_or_event_that_is_used_after_its_end_ends_the_process(uses):
    here = {"PYTHONPATH": fakecuda.__file__.rsplit("/", 1)[0]}
    ended = run_python(USED_AFTER_ITS_END.format(**uses), env=here)
    assert ended.code == -signal.SIGABRT and "destroyed" in ended.output and "went on" not in ended.output
    assert re.search(r"fakecuda: (stream|event) 0x[0-9a-f]+ is used after its end", ended.output), ended.output
