"""The page of a job, as a person sees it in a browser."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
from processes import SAY, Running, free_port, over, run_all

TRAIN = """
import time

import gradlane
import numpy as np

gradlane.init()
say(f"pid {gradlane.rank()} {os.getpid()}")
weight = np.ones(1 << 14, np.float32)
while True:
    # Rank 1 is late. Else the page would have no verdict.
    time.sleep(0.3 if gradlane.rank() == 1 else 0.05)
    gradlane.push_pull(weight, "layer4.<weight>")
"""

VOID = {"meta", "polyline"}

PATIENT = {"GRADLANE_DEAD_TIMEOUT": "5m", "GRADLANE_STEP_TIMEOUT": "10m"}
"""A worker that is stopped for a while is not given up."""


@dataclass(frozen=True)
class Job:
    """A job that runs."""

    running: Running
    port: int
    """Of its coordinator's page."""
    state: dict[str, str]
    """By which `gradlane status` finds it and no other."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job of three workers and two servers, of which one is late, and the port of its coordinator."""
    state = {"GRADLANE_STATE_DIR": str(tmp_path_factory.mktemp("state"))}
    port = free_port()
    # The other processes take the ports that follow it, or go on without if they are taken.
    shown = ["--metrics-bind", f"127.0.0.1:{port}"]
    command = [sys.executable, "-m", "gradlane", "run", "-n", "3", "-s", "2", *shown, "--"]
    with Running([*command, sys.executable, "-c", SAY + TRAIN], env=over("quic") | state | PATIENT) as running:
        yield Job(running, port, state)


def test_the_page_names_the_late_worker_and_needs_nothing_from_elsewhere(job: Job) -> None:
    port = job.port
    text = until(port, "rank 1 late (submit)")
    status, head, _ = ask(port, "/")
    assert status == 200
    assert head["Content-Type"] == "text/html; charset=utf-8"
    assert head["Content-Security-Policy"].startswith("default-src 'none'; style-src 'unsafe-inline';")
    assert len(text.encode()) < 64 << 10
    page = Page(text)
    assert not page.open, f"without an end: {page.open}"
    assert not page.tags & {"script", "link", "img", "iframe", "object", "form"}
    assert "://" not in text
    assert all(value.startswith("/") for name, value in page.attributes if name in ("href", "src"))
    words = " ".join(page.words)
    assert "3/3 workers" in words
    assert "2/2 servers" in words
    assert "<weight>" not in text, "a name is no tag"


def test_the_page_says_who_does_not_answer(job: Job) -> None:
    running, port = job.running, job.port
    stopped = int(running.line("pid 2 ").split()[2])
    os.kill(stopped, signal.SIGSTOP)
    try:
        until(port, "4 of 5 answered; missing: worker 2")
        text = until(port, "layer4.&lt;weight&gt; r")
        assert "for [2]" in text
        command = [sys.executable, "-m", "gradlane", "status", "--stalled", "--json"]
        [ended] = run_all([(command, job.state)], timeout=60)
        assert ended.code == 0, ended.output
        [waiting] = json.loads(ended.output)["waiting"]
        assert (waiting["tensor"], waiting["missing"]) == ("layer4.<weight>", [2])
        assert waiting["waited_ms"] >= 200
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_a_request_for_another_host_gets_no_page(job: Job) -> None:
    port = job.port
    assert ask(port, "/", Host="evil.example")[0] == 403


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_browser_shows_it_without_an_error_and_asks_nobody_else(job: Job, tmp_path: Path) -> None:
    port = job.port
    until(port, "rank 1 late (submit)")
    picture, net_log = tmp_path / "page.png", tmp_path / "net.json"
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"]
    as_root = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr"]
    files = [f"--user-data-dir={tmp_path / 'user'}", f"--screenshot={picture}", f"--log-net-log={net_log}"]
    # What the browser wants of its maker has no address.
    offline = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    url = f"http://127.0.0.1:{port}/"
    command = ["chromium", *as_root, *quiet, offline, *files, "--window-size=1200,900", url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "CONSOLE" not in ended.stderr, ended.stderr
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    assert (width, height) == (1200, 900)
    requests = [event["params"] for event in json.loads(net_log.read_text())["events"] if "params" in event]
    assert url in [request.get("url") for request in requests], "the browser has asked for it"
    by_the_page = [request for request in requests if request.get("initiator", "").startswith(url.rstrip("/"))]
    assert [request for request in by_the_page if request["url"] != url] == []


class Page(HTMLParser):
    """The tags, attributes and words of a page. Fails at a tag that ends and has not begun."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data.split()


def until(port: int, text: str) -> str:
    """The page, once it has this text. The page changes once a second."""
    deadline = time.monotonic() + 60
    while True:
        status, _, page = ask(port, "/") if answers(port) else (0, {}, "")
        if status == 200 and text in page:
            return page
        assert time.monotonic() < deadline, f"no {text!r} in {page}"
        time.sleep(0.2)


def answers(port: int) -> bool:
    try:
        ask(port, "/healthz")
    except OSError:
        return False
    return True


def ask(port: int, path: str, **fields: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers=fields)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()
