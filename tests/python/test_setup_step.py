"""The long steps of `make demo` and `make test`."""

import subprocess
import sys
from pathlib import Path

import pytest

STEP = Path(__file__).parents[2] / "python" / "step.py"


def step(tmp_path: Path, what: str, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "utf8", str(STEP), what, "5", "--", sys.executable, "-c", program]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=60, check=False)


@pytest.mark.parametrize(
    "what",
    ["Building the engine", "Making a Python environment in /home/me/a b/.venv", "Installing ../../peers/", "Ünïcode: 1/2"],
)
def test_a_step_may_name_any_folder(tmp_path: Path, what: str) -> None:
    ended = step(tmp_path, what, "print('all is well')")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert f"{what} (about 5 s) ..." in ended.stderr
    [log] = (tmp_path / "target" / "logs").iterdir()
    assert log.read_text(encoding="utf-8") == "all is well\n"


def test_a_step_that_fails_shows_its_last_lines_and_where_the_others_are(tmp_path: Path) -> None:
    ended = step(tmp_path, "Installing into a/b", "print(*range(100), sep='\\n'); raise SystemExit(7)")
    assert ended.returncode == 7
    assert "the whole output is in target/logs/installing-into-a-b.log" in ended.stderr
    assert ended.stderr.splitlines()[-40:] == [str(line) for line in range(60, 100)]
