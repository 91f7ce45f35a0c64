"""Runs a training on a machine that may be taken away, and asks it to leave its job in time.

python on_notice.py --of aws -- python train.py

It asks the cloud's metadata service every five seconds whether this machine is to be taken away. When it is, the training gets SIGTERM
once: it ends its step, leaves the job and exits with 0, and the other workers train on. SIGTERM and SIGINT for this program are passed on.
The exit code is that of the training.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable

INTERVAL = 5.0
"""Seconds between two questions. Clouds give notice 30 seconds (Google, Azure) to two minutes (Amazon) before."""
TIMEOUT = 2.0
"""Seconds for an answer."""
LASTS = "21600"
"""Seconds for which Amazon's token is good. It is asked for anew each time."""


def ask(url: str, headers: dict[str, str], method: str = "GET") -> str | None:
    """What the metadata service answers; nothing if it has no such page now."""
    # Never through a proxy: the service is reached from this machine alone.
    get = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    try:
        with get(urllib.request.Request(url, headers=headers, method=method), timeout=TIMEOUT) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def aws(host: str) -> bool:
    """Whether Amazon has announced an interruption. Until then there is no such page."""
    token = ask(f"{host}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": LASTS}, "PUT")
    return ask(f"{host}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token or ""}) is not None


def gcp(host: str) -> bool:
    """Whether Google preempts this machine."""
    return ask(f"{host}/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}) == "TRUE"


def azure(host: str) -> bool:
    """Whether Azure evicts a machine of this set."""
    answer = ask(f"{host}/metadata/scheduledevents?api-version=2020-07-01", {"Metadata": "true"})
    return any(event["EventType"] == "Preempt" for event in json.loads(answer or "{}").get("Events", []))


CLOUDS: dict[str, tuple[Callable[[str], bool], str]] = {
    "aws": (aws, "http://169.254.169.254"),
    "gcp": (gcp, "http://metadata.google.internal"),
    "azure": (azure, "http://169.254.169.254"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--of", choices=CLOUDS, required=True, help="whose machine this is")
    parser.add_argument("--host", help="another metadata service, to try it out")
    parser.add_argument("--interval", type=float, default=INTERVAL, help=f"seconds between two questions (default {INTERVAL:g})")
    parser.add_argument("command", nargs="+", help="the training, behind --")
    options = parser.parse_args()
    is_taken, host = CLOUDS[options.of]

    training = subprocess.Popen(options.command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: training.send_signal(number))
    is_told = False
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = training.wait(None if is_told else options.interval)
            return code if code >= 0 else 128 - code
        try:
            is_told = is_taken(options.host or host)
        except (OSError, ValueError) as error:
            print(f"no answer about this machine, next try soon: {error}", file=sys.stderr, flush=True)
        if is_told:
            print("this machine is taken away: the training leaves its job", file=sys.stderr, flush=True)
            training.terminate()


if __name__ == "__main__":
    sys.exit(main())
