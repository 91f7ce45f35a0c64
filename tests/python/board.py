"""A job, a real Prometheus that scrapes it as `examples/observability/prometheus.yml` says, and the expressions of the board.

    python tests/python/board.py    # needs prometheus on the PATH, such as Debian's package

Every expression has to be understood, and all but those of classes of errors, of which there are none, have to have a value.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from processes import Running, free_port, over

EXAMPLE = Path(__file__).parents[2] / "examples" / "observability"
PATIENCE = 60.0
TRAIN = """
import os, sys
from pathlib import Path
import gradlane, numpy as np

os.environ["GRADLANE_MACHINE"] = "ab"[int(os.environ["GRADLANE_RANK"]) // 2]  # two machines of two workers
gradlane.init()
ends = np.zeros(1, np.float32)
while not ends[0]:
    gradlane.push_pull(np.ones(100_000, np.float32), "layer.weight")
    ends[0] = Path(sys.argv[1]).exists()
    gradlane.push_pull(ends, "ends", op=gradlane.Max)
gradlane.shutdown()
"""


def expressions(value: object) -> Iterator[str]:
    """All expressions of the panels below a value of the board."""
    if isinstance(value, dict):
        if isinstance(value.get("expr"), str):
            yield value["expr"]
        for below in value.values():
            yield from expressions(below)
    elif isinstance(value, list):
        for below in value:
            yield from expressions(below)


class Prometheus:
    """Asks a Prometheus."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}/api/v1"

    def result(self, expression: str) -> list[dict]:
        """The series of an expression now."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self._address}/query?{query}", timeout=PATIENCE) as answer:
            found = json.load(answer)
        assert found["status"] == "success", f"{expression}: {found}"
        return found["data"]["result"]

    def problems(self) -> list[str]:
        """What is wrong with its targets."""
        with urllib.request.urlopen(f"{self._address}/targets", timeout=PATIENCE) as answer:
            targets = json.load(answer)["data"]["activeTargets"]
        return [f"{target['scrapeUrl']}: {target['lastError']}" for target in targets if target["health"] == "down"]


def eventually(what: str, check: Callable[[], bool]) -> None:
    """Waits until something holds."""
    deadline = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.2)


def answers(prometheus: Prometheus, expression: str) -> bool:
    try:
        return bool(prometheus.result(expression))
    except OSError:
        return False


def main() -> int:
    """Runs the job and the Prometheus, and prints each expression with its first value."""
    if shutil.which("prometheus") is None:
        print("prometheus is not on the PATH: install Debian's package, or a release of it", file=sys.stderr)
        return 1
    metrics, ports = free_port(), free_port()
    board = json.loads((EXAMPLE / "grafana.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        place, stop = Path(folder), Path(folder) / "stop"
        config = (EXAMPLE / "prometheus.yml").read_text()
        config = config.replace("127.0.0.1:9400", f"127.0.0.1:{metrics}").replace("scrape_interval: 5s", "scrape_interval: 1s")
        (place / "prometheus.yml").write_text(config)
        run = [sys.executable, "-m", "gradlane", "run", "-n", "4", "-s", "2", "--metrics-bind", f"127.0.0.1:{metrics}", "--"]
        scrape = ["prometheus", f"--config.file={place / 'prometheus.yml'}", f"--storage.tsdb.path={place / 'data'}"]
        scrape += [f"--web.listen-address=127.0.0.1:{ports}"]
        env = over("quic") | {"GRADLANE_STATE_DIR": str(place / "state"), "GRADLANE_LOCAL_REDUCE": "auto"}
        with Running([*run, sys.executable, "-c", TRAIN, str(stop)], env=env) as job, Running(scrape, env={}) as scraper:
            prometheus = Prometheus(ports)
            eventually("rates of all members", lambda: answers(prometheus, "rate(gradlane_server_last_total[10s])"))
            eventually("rates of the coordinator", lambda: answers(prometheus, "rate(gradlane_coordinator_stalls_total[10s])"))
            problems, silent = prometheus.problems(), []
            for expression in expressions(board):
                asked = expression.replace("$job", "gradlane").replace("$__rate_interval", "10s")
                found = prometheus.result(asked)
                print(f"{len(found):3} series  {found[0]['value'][1] if found else '-':>22}  {asked}")
                if not found and "by (class)" not in expression:
                    silent.append(asked)
            stop.touch()
            ended = job.end(PATIENCE)
            assert ended.code == 0, ended
            refused = re.findall(r"^.*(?:level=error|out of order|duplicate sample).*$", scraper.output, re.MULTILINE)
    for complaint in [*problems, *(f"no value: {expression}" for expression in silent), *refused]:
        print(complaint, file=sys.stderr)
    return 1 if problems or silent or refused else 0


if __name__ == "__main__":
    sys.exit(main())
