"""The QUIC data path on this machine's cores, by the benchmark that the wheel carries; no device takes part."""

from __future__ import annotations

import json
import subprocess
import sys

from places import IS_SHORT, SCRATCH
from telling import figure, passed

JOBS = ((1, 1), (2, 1), (4, 1)) if IS_SHORT else ((1, 1), (2, 1), (4, 1), (2, 2), (4, 4))
"""Workers and servers."""

SIZES = ["--smoke"] if IS_SHORT else ["-b", "64K", "-e", "64M", "-f", "8", "-N", "3", "--volume", "512M"]
JOB_SECONDS_MAX = 100.0


def quic() -> None:
    """Runs the benchmark for each number of workers; it verifies every sum."""
    for workers, servers in JOBS:
        path = SCRATCH / f"quic-{workers}-{servers}.json"
        bench = [sys.executable, "-m", "gradlane", "bench", "push-pull", "--road", "quic", "--place", "in", *SIZES]
        bench += ["--workers", str(workers), "--servers", str(servers), "-J", str(path)]
        ended = subprocess.run(bench, capture_output=True, encoding="utf-8", timeout=JOB_SECONDS_MAX)
        assert ended.returncode == 0, f"code {ended.returncode}\n{ended.stdout}{ended.stderr}"
        for row in json.loads(path.read_text())["rows"]:
            name = f"{workers} workers, {servers} servers, {row['size'] // 1024} KiB"
            figure(f"{name}: time", row["in_place"]["time_us"]["median"], "us")
            figure(f"{name}: algbw", row["in_place"]["algbw"]["median"], "GB/s")
    passed("every sum over QUIC was right")
