"""Metrics and probes over HTTP, as a user and Prometheus read them."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import sys

import gradlane
from processes import SAY, Running, free_port, over, run_all, run_python
from prometheus_client.parser import text_string_to_metric_families

TRAIN = """
import gradlane
import numpy as np

gradlane.init()
weight = np.ones(1 << 14, np.float32)
step = 0
while True:
    gradlane.push_pull(weight, "weight")
    step += 1
    if step % 20 == 0:
        say(f"step {step}")
"""

GET = """
import http.client

def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    return get(port, path) if answer.status == 408 else (answer.status, answer.read().decode())
"""


def test_a_job_is_scraped_while_it_trains():
    port = free_ports(3)
    command = [sys.executable, "-m", "gradlane", "run", "-n", "2", "--metrics-bind", f"127.0.0.1:{port}", "--"]
    with Running([*command, sys.executable, "-c", SAY + TRAIN], env=over("quic")) as job:
        job.line("step ")
        first = [scrape(port + index) for index in range(3)]
        # Lines of both workers, so that each goes on.
        for _ in range(4):
            job.line("step ")
        second = [scrape(port + index) for index in range(3)]
        for index, name, labels in [
            (0, "gradlane_coordinator_frames_total", {"job_name": "default"}),
            (0, "gradlane_server_received_bytes_total", {"server": "0"}),
            (1, "gradlane_worker_push_bytes_total", {"rank": "0"}),
            (2, "gradlane_worker_push_bytes_total", {"rank": "1"}),
            (2, "gradlane_exporter_answers_total", {"version": gradlane.__version__}),
        ]:
            before, after = (scrapes[index][name, *labels.items()] for scrapes in (first, second))
            assert 0 < before or name.startswith("gradlane_exporter"), name
            assert after > before or name.startswith("gradlane_coordinator"), name
        assert second[0]["gradlane_coordinator_workers_joined", ("job_name", "default")] == 2
        assert second[0]["gradlane_coordinator_members_missing", ("job_name", "default")] == 0
        assert [ask(port + index, "/readyz")[0] for index in range(3)] == [200, 200, 200]
        job.interrupt(signal.SIGTERM)
        assert job.end(30).code == 128 + signal.SIGTERM


def test_the_process_that_embeds_the_servers_shows_them_at_its_own_port():
    port = free_ports(2)
    script = GET + """
import gradlane
import numpy as np

gradlane.init()
gradlane.push_pull(np.ones(3), "weight")
status, text = get(PORT + gradlane.rank(), "/readyz")
parts = ["coordinator", "server", "worker"] if gradlane.rank() == 0 else ["worker"]
assert (status, text.split()) == (200, [word for part in parts for word in (part + ":", "ready")]), text
text = get(PORT + gradlane.rank(), "/metrics")[1]
assert f'gradlane_worker_submissions_total{{rank="{gradlane.rank()}"}} 1' in text, text
assert ("gradlane_server_" in text) == (gradlane.rank() == 0), text
for line in gradlane.metrics_text().splitlines():
    assert not line.startswith("# TYPE") or line in text, line
gradlane.barrier("read")
gradlane.shutdown()
""".replace("PORT", str(port))

    def rank(index: int) -> dict[str, str]:
        place = {"COMM_WORLD_RANK": index, "COMM_WORLD_SIZE": 2, "COMM_WORLD_LOCAL_RANK": index}
        place |= {"COMM_WORLD_LOCAL_SIZE": 2}
        settings = {"GRADLANE_METRICS_BIND": f"127.0.0.1:{port}", "GRADLANE_JOB": f"exporter{port}"}
        return {f"OMPI_{name}": str(value) for name, value in place.items()} | settings | over("quic")

    ended = run_all([([sys.executable, "-c", script], rank(index)) for index in range(2)], timeout=90)
    assert [end.code for end in ended] == [0, 0], ended


def test_a_forked_child_neither_serves_nor_keeps_the_port():
    port = free_ports(1)
    script = GET + """
import os, signal, socket
import gradlane

gradlane.init()
assert get(PORT, "/readyz") == (200, "worker: ready\\n")
child = os.fork()
if child == 0:
    signal.pause()
    os._exit(1)
assert get(PORT, "/healthz")[0] == 200, "the parent serves"
brief = os.fork()
if brief == 0:
    # It ends with what it inherits, as Python does at its end.
    raise SystemExit(0)
assert os.waitstatus_to_exitcode(os.waitpid(brief, 0)[1]) == 0
assert get(PORT, "/healthz")[0] == 200, "the parent goes on"
gradlane.shutdown()
for again in range(2):
    with socket.create_server(("127.0.0.1", PORT)):
        pass
    gradlane.init()
    assert get(PORT, "/readyz")[0] == 200, "and in the next job"
    gradlane.shutdown()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
""".replace("PORT", str(port))
    ended = run_python(script, env={"GRADLANE_METRICS_BIND": f"127.0.0.1:{port}"})
    assert ended.code == 0, ended.output


def scrape(port: int) -> dict[tuple, float]:
    """The value of each sample, by its name and labels. Fails if Prometheus' own parser takes offence."""
    status, kind, text = ask(port, "/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = list(text_string_to_metric_families(text))
    assert families
    samples = {}
    for family in families:
        assert family.type in ("counter", "gauge", "histogram"), family
        assert family.documentation.endswith("."), family
        for sample in family.samples:
            key = (sample.name, *sample.labels.items())
            assert key not in samples, key
            samples[key] = sample.value
    return samples


def ask(port: int, path: str) -> tuple[int, str | None, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    answer = connection.getresponse()
    if answer.status == 408:  # this process was too slow
        return ask(port, path)
    return answer.status, answer.getheader("Content-Type"), answer.read().decode()


def free_ports(count: int) -> int:
    """The first of so many ports that follow each other and are free."""
    while True:
        first = free_port()
        with contextlib.suppress(OSError), contextlib.ExitStack() as taken:
            for port in range(first + 1, first + count):
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
