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
from html.parser import HTMLParser
from pathlib import Path

import pytest
from processes import SAY, Running, free_port, over

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


@pytest.fixture(scope="module")
def job() -> Iterator[tuple[Running, int]]:
    """A job of three workers and two servers, of which one is late, and the port of its coordinator."""
    port = free_port()
    # Only the coordinator shows itself: no other port is needed.
    settings = ["--metrics-bind", f"127.0.0.1:{port}", "-o", "job=night<1>"]
    command = [sys.executable, "-m", "gradlane", "run", "-n", "3", "-s", "2", *settings, "--"]
    with Running([*command, sys.executable, "-c", SAY + TRAIN], env=over("quic")) as running:
        yield running, port


def test_the_page_names_the_late_worker_and_needs_nothing_from_elsewhere(job: tuple[Running, int]) -> None:
    _, port = job
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


def test_the_page_says_who_does_not_answer(job: tuple[Running, int]) -> None:
    running, port = job
    pids = dict(line.split()[1:] for line in running.output.splitlines() if line.startswith("pid "))
    stopped = int(pids["2"])
    os.kill(stopped, signal.SIGSTOP)
    try:
        until(port, "4 of 5 answered; missing: worker 2")
        text = until(port, "layer4.&lt;weight&gt; r")
        assert "for [2]" in text
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_a_request_for_another_host_gets_no_page(job: tuple[Running, int]) -> None:
    _, port = job
    assert ask(port, "/", Host="evil.example")[0] == 403


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs Chromium")
def test_a_browser_shows_it_without_an_error_and_asks_nobody_else(job: tuple[Running, int], tmp_path: Path) -> None:
    _, port = job
    until(port, "rank 1 late (submit)")
    picture, net_log = tmp_path / "page.png", tmp_path / "net.json"
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"]
    as_root = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging=stderr"]
    files = [f"--user-data-dir={tmp_path / 'user'}", f"--screenshot={picture}", f"--log-net-log={net_log}"]
    url = f"http://127.0.0.1:{port}/"
    command = ["chromium", *as_root, *quiet, *files, "--window-size=1200,900", url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "CONSOLE" not in ended.stderr, ended.stderr
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    assert (width, height) == (1200, 900)
    events = json.loads(net_log.read_text())["events"]
    urls = {event["params"]["url"] for event in events if "url" in event.get("params", {})}
    asked = {url for url in urls if url.startswith(("http:", "https:", "ws:"))}
    assert asked == {url}, asked


class Page(HTMLParser):
    """The tags, attributes and words of a page. Fails at a tag that ends and has not begun."""

    def __init__(self, text: str) -> None:
        """Reads all of it."""
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag begins."""
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag without anything in it."""
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        """A tag ends."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """A text."""
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
