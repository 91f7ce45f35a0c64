"""`bench/observing.py`: the measurement of what it costs to see a job runs. How fast anything is does not matter here."""

from __future__ import annotations

import sys
from pathlib import Path

from processes import run_all

BENCH = Path(__file__).parents[2] / "bench"


def test_all_rows_are_measured():
    [ended] = run_all([([sys.executable, str(BENCH / "observing.py"), "--short", "--only", "quic 4KiB"], {})], timeout=120.0)
    assert ended.code == 0, ended
    rows = [line.split() for line in ended.output.splitlines() if line.startswith("quic")]
    assert [row[2] for row in rows] == ["nothing", "recorder", "timeline", "asked"]
    assert rows[0][5] == "1.000"
