"""`examples/spot/on_notice.py` asks the metadata services of clouds, and its training leaves the job when the machine is taken away."""

import http.server
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from pools import Pool
from processes import Running, run_all
from service import Service
from test_elastic_join import GOES_ON, LEAVES

ON_NOTICE = Path(__file__).parents[2] / "examples" / "spot" / "on_notice.py"

AZURE = "/metadata/scheduledevents?api-version=2020-07-01"
PAGES = {
    "aws": ("/latest/meta-data/spot/instance-action", None, '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'),
    "gcp": ("/computeMetadata/v1/instance/preempted", "FALSE", "TRUE"),
    "azure": (AZURE, '{"Events": [{"EventType": "Reboot"}]}', '{"Events": [{"EventType": "Preempt"}]}'),
}
"""By cloud: the page that tells, what it has at first (None: it is not there), and when the machine is taken away."""

WAITS_FOR_SIGTERM = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("trains", flush=True)
signal.sigwait([signal.SIGTERM])
print("leaves", flush=True)
"""


class Metadata(Service):
    """A stand-in for the metadata service of a cloud, which demands the headers that the cloud demands."""

    def __init__(self, cloud):
        self.path, self.content, self.notice = PAGES[cloud]
        self.asked = threading.Semaphore(0)
        metadata = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self):
                self.answer("token" if self.headers["X-aws-ec2-metadata-token-ttl-seconds"] == "21600" else None)

            def do_GET(self):
                headers = {"aws": ("X-aws-ec2-metadata-token", "token"), "gcp": ("Metadata-Flavor", "Google"), "azure": ("Metadata", "true")}
                name, value = headers[cloud]
                self.answer(metadata.content if (self.path, self.headers[name]) == (metadata.path, value) else None)
                metadata.asked.release()

            def answer(self, text):
                self.send_response(404 if text is None else 200)
                self.end_headers()
                self.wfile.write((text or "").encode())

        super().__init__(Handler)


def on_notice(cloud, metadata, *command):
    return [sys.executable, str(ON_NOTICE), "--of", cloud, "--host", metadata.address, "--interval", "0.05", "--", *command]


@pytest.mark.parametrize("cloud", PAGES)
def test_a_training_gets_sigterm_when_its_machine_is_taken_away_and_not_before(cloud):
    with Metadata(cloud) as metadata, Running(on_notice(cloud, metadata, sys.executable, "-c", WAITS_FOR_SIGTERM), env={}) as machine:
        machine.line("trains")
        for _ in range(3):
            assert metadata.asked.acquire(timeout=30)
        assert "taken away" not in machine.output
        metadata.content = metadata.notice
        machine.line("leaves")
        ended = machine.end(30)
    assert ended.code == 0 and ended.output.count("this machine is taken away") == 1, ended.output


@pytest.mark.parametrize(("ends", "code"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_exit_code_is_that_of_the_training_also_without_a_metadata_service(ends, code):
    command = [sys.executable, str(ON_NOTICE), "--of", "aws", "--host", "http://127.0.0.1:9", "--", sys.executable, "-c", ends]
    [ended] = run_all([(command, {})], timeout=30)
    assert ended.code == code, ended.output


def test_sigterm_is_passed_on():
    with Metadata("gcp") as metadata, Running(on_notice("gcp", metadata, sys.executable, "-c", WAITS_FOR_SIGTERM), env={}) as machine:
        machine.line("trains")
        os.kill(machine.pid, signal.SIGTERM)
        machine.line("leaves")
        assert machine.end(30).code == 0


@pytest.mark.over("quic")
def test_a_worker_on_a_machine_that_is_taken_away_leaves_and_another_one_comes(transport, tmp_path):
    with Metadata("aws") as metadata, Pool(tmp_path, transport, workers=2, elastic="1:3") as pool:
        stays = pool.worker(GOES_ON)
        spot = pool.worker(LEAVES, *on_notice("aws", metadata))
        for worker in (stays, spot):
            worker.line("trains ")
        metadata.content = metadata.notice
        spot.line("left")
        stays.line("now 1 ")
        comes = pool.newcomer(GOES_ON)
        comes.line("trains ")
        pool.stop.touch()
        ended = [worker.end(30) for worker in (stays, comes, spot)]
    assert [worker.code for worker in ended] == [0] * 3, [worker.output for worker in ended]
