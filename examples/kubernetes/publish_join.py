"""Puts the join string of a coordinator into a Secret of Kubernetes, and again when another coordinator has started.

It runs beside the coordinator, whose join file is `GRADLANE_JOIN_FILE`. `JOIN_SECRET` names the Secret, which must
exist. The pod's service account must be allowed to patch that one Secret, and needs nothing else.
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import sys
import time
import urllib.request
from pathlib import Path

API = os.environ.get("KUBERNETES_API", "https://kubernetes.default.svc")
ACCOUNT = Path(os.environ.get("KUBERNETES_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
INTERVAL = 1.0
"""Seconds between two looks at the join file."""
TIMEOUT = 10.0
"""Seconds for an answer of Kubernetes."""


def main() -> None:
    file, published = Path(os.environ["GRADLANE_JOIN_FILE"]), ""
    while True:
        join = read(file)
        if join not in ("", published):
            try:
                publish(join, os.environ["JOIN_SECRET"])
            except OSError as error:
                print(f"the Secret is not changed, next try soon: {error}", file=sys.stderr, flush=True)
            else:
                published = join
                print("the Secret holds the join string", flush=True)
        time.sleep(INTERVAL)


def read(file: Path) -> str:
    """The join string; an empty one while there is no coordinator."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def publish(join: str, secret: str) -> None:
    """Replaces the entry `join` of the Secret. Raises `OSError` if Kubernetes does not answer or does not allow it."""
    token, namespace = (ACCOUNT / "token").read_text(encoding="utf-8"), (ACCOUNT / "namespace").read_text(encoding="utf-8")
    patch = {"data": {"join": base64.b64encode(join.encode()).decode()}}
    request = urllib.request.Request(
        f"{API}/api/v1/namespaces/{namespace}/secrets/{secret}",
        data=json.dumps(patch).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"},
        method="PATCH",
    )
    authority = ACCOUNT / "ca.crt"
    trusted = ssl.create_default_context(cafile=authority) if API.startswith("https:") else None
    urllib.request.urlopen(request, timeout=TIMEOUT, context=trusted).close()


if __name__ == "__main__":
    main()
