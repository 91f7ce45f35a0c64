"""A job whose coordinator and server are the static program, in a root folder like that of its container image."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

from processes import Running, free_port, run_all

SERVER = Path(os.environ["GRADLANE_STATIC_SERVER"])  # `make test-static` makes it
SUM = """
import array, gradlane, os

gradlane.init()
total = gradlane.push_pull(array.array("d", [1.0 + gradlane.rank()]), "sum", op=gradlane.Sum)
os.write(1, f"rank {gradlane.rank()} got {total[0]}\\n".encode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_job_with_the_server_alone_in_a_folder(tmp_path):
    root = tmp_path / "root"
    for folder in ("tmp", "etc", "proc", "dev"):
        (root / folder).mkdir(parents=True)
    shutil.copy(SERVER, root / "gradlane-server")
    (root / "etc" / "hosts").write_text("127.0.0.1 coordinator\n")
    # Everything that a runtime of containers adds; the mounts end with the process.
    enter = 'mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" /gradlane-server "$@"'
    inside = ["unshare", "--mount", "sh", "-c", enter, str(root)]
    env = {"GRADLANE_STATE_DIR": "/tmp/state", "GRADLANE_TRANSPORT": "quic"}
    port = free_port()
    listening = ["coordinator", "-n", "2", "-s", "1", "--bind", f"127.0.0.1:{port}", "--join-file", "/tmp/join"]
    with Running([*inside, *listening], env=env) as coordinator:
        coordinator.line("GRADLANE_JOIN_FILE=")
        join = root / "tmp" / "join"
        # A host name has to be looked up, which the C library does by other libraries where it can.
        named = root / "tmp" / "named"
        named.write_text(join.read_text().replace("127.0.0.1", "coordinator"))
        named.chmod(0o600)
        with Running([*inside, "server", "--join-file", "/tmp/named"], env=env) as server:
            worker = {"GRADLANE_JOIN_FILE": str(join), "GRADLANE_SIZE": "2", "GRADLANE_TRANSPORT": "quic"}
            commands = [([sys.executable, "-c", SUM], worker | {"GRADLANE_RANK": str(rank)}) for rank in range(2)]
            ended = run_all(commands, timeout=60)
            output = "".join(process.output for process in ended)
            assert sorted(output.splitlines()) == ["rank 0 got 3.0", "rank 1 got 3.0"], output
            assert server.end(30).code == 0
        assert coordinator.end(30).code == 0
