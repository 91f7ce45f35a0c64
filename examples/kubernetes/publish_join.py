"""Puts the join string of a coordinator into a Secret of Kubernetes, and again when another coordinator has started.

It runs beside the coordinator, whose join file is `GRADLANE_JOIN_FILE`. `JOIN_SECRET` names the Secret, which must
exist. The pod's service account must be allowed to patch that one Secret, and needs nothing else.

With `JOIN_TOKENS="worker server"` the Secret has, in place of the entry `join`, an entry for each role with a token, which also
lets in processes that come to an elastic job late. They are made anew long before they are too old. For that, the state directory
of the coordinator, `GRADLANE_STATE_DIR`, must be here too.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

API = os.environ.get("KUBERNETES_API", "https://kubernetes.default.svc")
ACCOUNT = Path(os.environ.get("KUBERNETES_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
INTERVAL = 1.0
"""Seconds between two looks at the join file."""
TIMEOUT = 10.0
"""Seconds for an answer of Kubernetes, and for a token."""
TOKEN_LASTS, TOKEN_RENEWED_AFTER = "24h", 6 * 3600.0
"""How long a token is good, which is at most a day, and the seconds after which there is another one."""
TOKEN_USES = 1000
"""How many processes it lets in."""


def main() -> None:
    file, published, renewed = Path(os.environ["GRADLANE_JOIN_FILE"]), "", 0.0
    roles = os.environ.get("JOIN_TOKENS", "").split()
    while True:
        join = read(file)
        is_old = bool(roles) and time.monotonic() > renewed + TOKEN_RENEWED_AFTER
        if join and (join != published or is_old):
            try:
                entries = {role: token(role) for role in roles} or {"join": join}
                publish(entries, os.environ["JOIN_SECRET"])
            except (OSError, subprocess.SubprocessError) as error:
                print(f"the Secret is not changed, next try soon: {error}", file=sys.stderr, flush=True)
            else:
                published, renewed = join, time.monotonic()
                print(f"the Secret holds: {', '.join(entries)}", flush=True)
        time.sleep(INTERVAL)


def read(file: Path) -> str:
    """The join string; an empty one while there is no coordinator."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def token(role: str) -> str:
    """A join string with a token for this role. Raises `SubprocessError` if the coordinator's state is not there."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "join"
        good = ["--role", role, "--uses", str(TOKEN_USES), "--ttl", TOKEN_LASTS, "--join-file", str(file)]
        subprocess.run(["gradlane", "token", "new", *good], check=True, timeout=TIMEOUT, stdout=subprocess.DEVNULL)
        return file.read_text(encoding="utf-8")


def publish(entries: dict[str, str], secret: str) -> None:
    """Replaces these entries of the Secret. Raises `OSError` if Kubernetes does not answer or does not allow it."""
    bearer, namespace = (ACCOUNT / "token").read_text(encoding="utf-8"), (ACCOUNT / "namespace").read_text(encoding="utf-8")
    patch = {"data": {name: base64.b64encode(entry.encode()).decode() for name, entry in entries.items()}}
    request = urllib.request.Request(
        f"{API}/api/v1/namespaces/{namespace}/secrets/{secret}",
        data=json.dumps(patch).encode(),
        headers={"Authorization": f"Bearer {bearer}", "Content-Type": "application/merge-patch+json"},
        method="PATCH",
    )
    authority = ACCOUNT / "ca.crt"
    trusted = ssl.create_default_context(cafile=authority) if API.startswith("https:") else None
    urllib.request.urlopen(request, timeout=TIMEOUT, context=trusted).close()


if __name__ == "__main__":
    main()
