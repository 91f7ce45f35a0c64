"""Machines on slow links, all of them on this host: network namespaces, joined by a bridge. Needs root and iproute2.

Each machine has one link to the bridge, whose rate a token bucket (`tc tbf`) limits in both directions. Nothing has a name
that could be left behind: a namespace lives as long as a process in it, the process that holds it is a `cat` that ends with
this one, however this one ends, and so do those that are started on the machines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

QUEUE_SECONDS = 0.016
"""The queue of a link, in seconds: 2 MB at 1 Gbit/s. An urgent packet waits behind all of it."""
PACKET_BYTES_MAX = 80_000
"""The largest packet before the kernel cuts it into segments; a token bucket has to hold one."""
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class Unavailable(Exception):
    """The machines cannot be made; the message says what this host lacks."""


class Machines:
    """A context with machines; all processes on them end with it."""

    def __init__(self, count: int, rate: str, mtu: int = 1500) -> None:
        """`rate` is the rate of each link in each direction, such as 1gbit."""
        self._count, self._mtu = count, mtu
        self._shape = _shape(rate)
        self._holders: list[subprocess.Popen[bytes]] = []
        self._started: list[subprocess.Popen[str]] = []

    @staticmethod
    def address(machine: int | None) -> str:
        """The address of a machine; None is the bridge, whose link is not limited."""
        return "10.78.0.254" if machine is None else f"10.78.0.{machine + 1}"

    def start(
        self, machine: int | None, line: Sequence[str], env: Mapping[str, str], *, piped: bool = False
    ) -> subprocess.Popen[str]:
        """Starts a command on a machine, with additions to the environment."""
        command = [*self.enter(machine), "setpriv", "--pdeathsig", "KILL", "--", *line]
        output = subprocess.PIPE if piped else None
        process = subprocess.Popen(command, env=os.environ | dict(env), stdout=output, encoding="utf-8")
        self._started.append(process)
        return process

    def shape(self, machine: int, rate: str) -> None:
        """Gives the link of a machine another rate, in both directions."""
        self._run(None, f"tc qdisc replace dev port{machine} {_shape(rate)}")
        self._run(machine, f"tc qdisc replace dev eth0 {_shape(rate)}")

    def lose(self, machine: int, *, sender: int, one_of: int) -> None:
        """Drops one of so many packets at random that come from `sender` to a machine. Needs nftables."""
        # A packet is a frame, so that one drop is one loss.
        self._run(sender, "ip link set eth0 gso_max_segs 1")
        self._run(
            machine,
            "nft add table ip loss",
            "nft add chain ip loss arriving { type filter hook prerouting priority 0 ; }",
            f"nft add rule ip loss arriving ip saddr {self.address(sender)} numgen random mod {one_of} 0 drop",
        )

    def run(self, worker: Sequence[str], workers: int, servers: int, env: Mapping[str, str]) -> int:
        """Runs a job with each worker and server on a machine of its own, the coordinator on the bridge.

        Workers find the first of them by MASTER_ADDR and MASTER_PORT too. Returns the first exit code that is not 0.
        """
        gradlane = [sys.executable, "-m", "gradlane"]
        listening = ["coordinator", "-n", str(workers), "-s", str(servers), "--bind", f"{self.address(None)}:0"]
        coordinator = self.start(None, [*gradlane, *listening], env, piped=True)
        assert coordinator.stdout is not None
        named = (line.strip().partition("=") for line in coordinator.stdout)
        join = {"GRADLANE_JOIN_FILE": next(value for name, _, value in named if name == "GRADLANE_JOIN_FILE")}
        for number in range(servers):
            self.start(workers + number, [*gradlane, "server"], {**env, **join})
        env = {**env, **join, "GRADLANE_SIZE": str(workers), "GRADLANE_SERVERS": str(servers)}
        env |= {"MASTER_ADDR": self.address(0), "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0"}
        started = [self.start(rank, worker, env | {"GRADLANE_RANK": str(rank)}) for rank in range(workers)]
        codes = [process.wait() for process in started]
        return next((code for code in codes if code != 0), 0)

    def __enter__(self) -> Machines:
        missing = [tool for tool in ("ip", "tc", "unshare", "nsenter", "setpriv") if shutil.which(tool) is None]
        if missing:
            raise Unavailable(f"shaped links need {', '.join(missing)}; install iproute2 and util-linux")
        if os.geteuid() != 0:
            raise Unavailable("shaped links need root; use sudo, or do without --rate")
        try:
            self._holders = [self._hold() for _ in range(self._count + 1)]
            self._connect()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _connect(self) -> None:
        self._run(None, "ip link set lo up", "ip link add bridge type bridge", "ip link set bridge up")
        self._run(None, f"ip addr add {self.address(None)}/24 dev bridge")
        for machine in range(self._count):
            port, size = f"port{machine}", f"mtu {self._mtu}"
            self._run(
                None,
                f"ip link add {port} {size} type veth peer name eth0 {size} netns {self._pid(machine)}",
                f"ip link set {port} master bridge up",
                f"tc qdisc add dev {port} {self._shape}",
            )
            self._run(
                machine,
                "ip link set lo up",
                f"ip addr add {self.address(machine)}/24 dev eth0",
                "ip link set eth0 up",
                f"tc qdisc add dev eth0 {self._shape}",
            )

    def _run(self, machine: int | None, *lines: str) -> None:
        for line in lines:
            ended = subprocess.run([*self.enter(machine), *line.split()], capture_output=True, encoding="utf-8", check=False)
            if ended.returncode != 0:
                raise Unavailable(f"{line!r} failed: {ended.stderr.strip()}")

    def enter(self, machine: int | None) -> list[str]:
        """What to put before a command, so that it runs on a machine."""
        return ["nsenter", f"--net=/proc/{self._pid(machine)}/ns/net", "--"]

    def _pid(self, machine: int | None) -> int:
        return self._holders[0 if machine is None else machine + 1].pid

    def _hold(self) -> subprocess.Popen[bytes]:
        holder = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holder.stdin is not None and holder.stdout is not None
        # Its answer means that it has its namespace.
        holder.stdin.write(b"there?\n")
        holder.stdin.flush()
        if holder.stdout.readline() != b"there?\n":
            raise Unavailable("this process may not make network namespaces")
        return holder

    def _close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        for holder in self._holders:
            holder.communicate()


def _shape(rate: str) -> str:
    """The words of `tc` for a token bucket."""
    bits = _bits(rate)
    burst = max(PACKET_BYTES_MAX, int(bits / 8 / 1000))  # at least a millisecond, because timers fire late
    queue = max(2 * PACKET_BYTES_MAX, int(bits / 8 * QUEUE_SECONDS))
    return f"root tbf rate {int(bits)}bit burst {burst}b limit {queue}b"


def _bits(rate: str) -> float:
    parsed = re.fullmatch(r"([0-9.]+)(kbit|mbit|gbit)", rate.lower())
    bits = float(parsed[1]) * UNITS[parsed[2]] if parsed else 0.0
    if not 1e6 <= bits <= 1e11:
        raise Unavailable(f"--rate {rate} is no rate; write it like 1gbit or 200mbit")
    return bits
