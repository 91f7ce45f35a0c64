"""Perfetto itself reads timelines of workers and servers, and those of PyTorch's profiler, merged into one file.

python tests/perfetto/check.py                         # in the environment of `make test-perfetto`
python tests/perfetto/check.py --picture timeline.png

A training of two workers and a server writes timelines. Perfetto's interface, served from files of this host in a headless Chromium, opens what
`gradlane.timeline merge` makes of them: the file of JSON, and the tar. Its own SQL then says what it has read. The exit code is 1 if anything was
lost or is where it should not be.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import viztracer
from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.support.wait import WebDriverWait

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv/bin"
INTERFACE = Path(viztracer.__file__).parent / "web_dist"
PATIENCE = 120
"""Seconds that anything here may take."""
OWN = ["QUEUE", "PUSH", "PULL", "SUM", "SEND", "FIRST BYTE", "LAST BYTE", "TAKEN", "ARRIVED"]
"""What Gradlane's own events are called."""
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
QUERY = """
const [text, done] = arguments;
window.app.trace.engine.query(text).then(result => {
    const rows = [];
    for (const row = result.iter({}); row.valid(); row.next()) rows.push(result.columns().map(column => String(row.get(column))));
    done(rows);
}, error => done(String(error)));
"""
SHOW = """
const [from, to, hidden] = arguments;
const trace = window.app.trace;
for (const group of [...trace.workspace.children]) {
    if (hidden.some(word => group.name.startsWith(word))) trace.workspace.removeChild(group);
    else { group.expand(); for (const row of group.children) if (row.name.includes("alike") || row.name.includes("used [")) group.removeChild(row); }
}
for (const script of [...trace.workspace.children].filter(group => /^worker \\d+ /.test(group.name)).reverse()) {
    trace.workspace.removeChild(script);
    trace.workspace.addChildFirst(script);
}
trace.scrollTo({time: {start: BigInt(from), end: BigInt(to), behavior: {viewPercentage: 0.95}}});
"""


class Failed(Exception):
    """Perfetto has read something else than what was written."""


class Files(http.server.SimpleHTTPRequestHandler):
    """The files of the interface, and the trace that it asks for when it starts."""

    trace = b""

    def do_GET(self) -> None:
        answers = {"/localtrace": self.trace, "/vizviewer_info": b"{}", "/file_info": b"{}"}
        body = answers.get(self.path.partition("?")[0])
        if body is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def perfetto(trace: Path, height: int = 900) -> Iterator[webdriver.Chrome]:
    """A browser in which Perfetto has opened a trace."""
    handler = type("Traced", (Files,), {"trace": trace.read_bytes()})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(INTERFACE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = webdriver.ChromeOptions()
    for flag in [*FLAGS, f"--window-size=1600,{height}"]:
        options.add_argument(flag)
    # Otherwise Selenium would look for both on the network.
    driver, options.binary_location = (shutil.which(name) or "" for name in ("chromedriver", "chromium"))
    if not driver or not options.binary_location:
        raise Failed("this needs chromium and chromedriver")
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        browser.set_script_timeout(PATIENCE)
        browser.get(f"http://127.0.0.1:{server.server_port}/")
        # The trace is there when its last row has a place.
        WebDriverWait(browser, PATIENCE).until(lambda browser: browser.execute_script("return window.app?.trace?.workspace?.children.length > 0 && !window.app.isLoadingTrace"))
        yield browser
    except TimeoutException:
        raise Failed(f"Perfetto has not opened {trace.name} within {PATIENCE} s") from None
    finally:
        browser.quit()
        server.shutdown()


def ask(browser: webdriver.Chrome, query: str) -> list[list[str]]:
    """The rows of an answer."""
    rows = browser.execute_async_script(QUERY, query)
    if isinstance(rows, str):
        raise Failed(f"{query}: {rows}")
    return rows


def train(folder: Path) -> tuple[Path, Path]:
    """What a training has written, merged: JSON, and a tar."""
    environment = {**os.environ, "GRADLANE_TIMELINE": str(folder), "GRADLANE_LOCAL_REDUCE": "off"}
    run = [BIN / "gradlane", "run", "-n", "2", "-s", "1", "--", BIN / "python", Path(__file__).with_name("train.py"), folder]
    subprocess.run(run, env=environment, check=True, timeout=PATIENCE)
    merged, tar = folder / "all.json", folder / "all.tar"
    parts = [*folder.glob("*/comm.json"), *folder.glob("profile-*.json")]
    if len(parts) != 5:
        raise Failed(f"there are {len(parts)} files: {parts}")
    merge = [BIN / "python", "-m", "gradlane.timeline", "merge", "--out", merged, "--perfetto", tar, *parts]
    subprocess.run(merge, check=True, timeout=PATIENCE)
    return merged, tar


def written(merged: Path) -> collections.Counter[str]:
    """How often each name stands in a file."""
    content = json.loads(merged.read_text("utf-8"))
    events = content["traceEvents"] if isinstance(content, dict) else content
    return collections.Counter(event["name"] for event in events if event["ph"] in "Xi")


def check(browser: webdriver.Chrome, expected: collections.Counter[str]) -> None:
    """Nothing was lost, and the profiler's events lie where the training was profiled."""
    lost = ask(browser, "select name, value from stats where severity in ('error', 'data_loss') and value > 0")
    if lost:
        raise Failed(f"Perfetto says of what it read: {lost}")
    names = ", ".join(f"'{name}'" for name in OWN)
    found = {name: int(count) for name, count in ask(browser, f"select name, count(*) from slice where name in ({names}) or name like 'step %' group by name")}
    wanted = {name: count for name, count in expected.items() if name in OWN or name.startswith("step ")}
    if found != wanted:
        raise Failed(f"Perfetto has {found}, and {wanted} was written")


def check_arrows(browser: webdriver.Chrome, expected: collections.Counter[str]) -> None:
    """Arrows lead from each push to its last byte in the sum, and from the sum to the end of each pull; the profiler has its operations within the steps that it saw."""
    arrows = "select a.name, b.name, count(*) from flow join slice a on a.id = slice_out join slice b on b.id = slice_in where 'PUSH' in (a.name, b.name) or 'SEND' in (a.name, b.name) group by 1, 2"
    found = {(source, sink): int(count) for source, sink, count in ask(browser, arrows)}
    wanted = {("PUSH", "LAST BYTE"): expected["PUSH"], ("SEND", "ARRIVED"): expected["PULL"]}
    if found != wanted:
        raise Failed(f"there are arrows {found} in place of {wanted}")
    outside = """
        with seen as (select min(ts) as since, max(ts + dur) as until from slice where name in ('step 3', 'step 4', 'step 5'))
        select count(*), sum(ts < since or ts > until) from slice, seen where name like 'aten::%'
    """
    [[operations, misplaced]] = ask(browser, outside)
    if int(operations) < 100 or int(misplaced) > 0:
        raise Failed(f"of {operations} operations of PyTorch, {misplaced} lie outside of the steps that were profiled")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--picture", type=Path, help="where to put a picture of two steps")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perfetto-") as folder:
        try:
            merged, tar = train(Path(folder))
            expected = written(merged)
            with perfetto(merged, 1150) as browser:
                check(browser, expected)
                check_arrows(browser, expected)
                if arguments.picture is not None:
                    [[since, until]] = ask(browser, "select min(ts), max(ts + dur) from slice where name in ('step 4', 'step 5')")
                    browser.execute_script(SHOW, since, until, ["Unnamed", "Process ", "Spans", "Traces"])
                    browser.execute_async_script("window.waitForPerfettoIdle(1000).then(arguments[0])")
                    browser.save_screenshot(str(arguments.picture))
            # It has the files as they were written, without arrows.
            with perfetto(tar) as browser:
                check(browser, collections.Counter({name: count for name, count in expected.items() if name != "ARRIVED"}))
        except (Failed, subprocess.SubprocessError) as error:
            print(f"FAILED: {error}", file=sys.stderr)
            return 1
    print(f"Perfetto has read {sum(expected.values())} events of JSON, and of the tar")
    return 0


if __name__ == "__main__":
    sys.exit(main())
