"""Manifests in `examples/kubernetes`, and this host in the place of a cluster."""

import base64
import http.server
import json
import os
import re
import shutil
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import free_port, run_all
from service import Service

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = EXAMPLES / "kubernetes"

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
JOB_NAME = "batch.kubernetes.io/job-name"


def documents(manifest):
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((MANIFESTS / f"{manifest}.yaml").read_text()))


def document(manifest, kind, name=None):
    [found] = [d for d in documents(manifest) if d["kind"] == kind and name in (None, d["metadata"]["name"])]
    return found


@dataclass
class Host:
    """This host in the place of a cluster's nodes: the commands of pods run here with other addresses and paths."""

    folder: Path
    here: dict[str, str]
    """What is otherwise on this host, by the words of the manifests."""
    master_port: str
    join_secret: Path
    """The file that pods see of the Secret with the join string."""

    def pod(self, container, index, injected=None):
        """The command line and environment of a pod's container, with what a controller has injected there."""
        environment = dict(variables(container, index)) | (injected or {})
        environment = {name: self.here.get(value, value) for name, value in environment.items()}
        words = [*container["command"], *container.get("args", [])]
        words = [re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], word) for word in words]
        # Each pod is a machine of its own.
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        own = {"GRADLANE_MACHINE": f"pod-{index}", "OMP_NUM_THREADS": "1", "PATH": path}
        program = shutil.which(words[0], path=path)
        return [program, *(self.here.get(word, word) for word in words[1:])], environment | own

    def train(self, pods):
        ended = run_all(pods, timeout=240, cwd=self.folder)
        assert [pod.code for pod in ended] == [0] * len(pods), "\n".join(pod.output for pod in ended)
        assert "unencrypted" not in ended[0].output, "the secret seals it"

    def service_account(self):
        account = self.folder / "account"
        account.mkdir()
        (account / "token").write_text("token of the account")
        (account / "namespace").write_text("default")
        return account


@pytest.fixture(name="host")
def a_host(tmp_path):
    programs = {
        "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
        "python": f'exec {sys.executable} "$@"',
        "gradlane-server": f'exec {sys.executable} -m gradlane "$@"',
        "gradlane": f'exec {sys.executable} -m gradlane "$@"',
        "sleep": "exit 0",  # `sleep infinity` keeps a pod that has trained
    }
    (tmp_path / "bin").mkdir()
    for name, line in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    for script in (EXAMPLES / "digits.py", MANIFESTS / "publish_join.py"):
        shutil.copy(script, tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o400)
    (tmp_path / "job").mkdir()
    master_port, join_secret = str(free_port()), tmp_path / "join"
    here = {
        "/secrets/gradlane/secret": str(secret),
        "/secrets/join/join": str(join_secret),
        "/job/join": str(tmp_path / "job" / "join"),
        "/job/state": str(tmp_path / "job" / "state"),
        "/secrets/tokens/server": str(tmp_path / "server"),
        "/secrets/tokens/worker": str(tmp_path / "worker"),
        "--master-addr=digits-0.digits": "--master-addr=127.0.0.1",
        "--master-port=29500": f"--master-port={master_port}",
        "--bind=0.0.0.0:7000": f"--bind=127.0.0.1:{free_port()}",
        "--advertise=digits-coordinator": "--advertise=localhost",
        "--bind=0.0.0.0:7001": "--bind=127.0.0.1:0",
        "status.podIP": "127.0.0.1",
        "--check": "--steps=20",  # so few that the accuracy says nothing
        "--steps=20000": "--steps=1000000",  # as long as the test lasts
    }
    return Host(tmp_path, here, master_port, join_secret)


class StandInApi(Service):
    """The part of Kubernetes' API that replaces entries of a Secret, and the node that writes them into files of a folder."""

    def __init__(self, folder, secret, *entries):
        api = self
        self.published, self.refused = threading.Event(), []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PATCH(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked = (self.path, self.headers["Authorization"], self.headers["Content-Type"], [*body["data"]])
                is_right = asked == (
                    f"/api/v1/namespaces/default/secrets/{secret}",
                    "Bearer token of the account",
                    "application/merge-patch+json",
                    [*entries],
                )
                if is_right:
                    for entry in entries:
                        draft = folder / f"{entry}.draft"
                        draft.write_bytes(base64.b64decode(body["data"][entry]))
                        draft.chmod(0o400)
                        draft.rename(folder / entry)
                    api.published.set()
                else:
                    api.refused.append(asked)
                self.send_response(200 if is_right else 403)
                self.end_headers()

        super().__init__(Handler)


def mounted(spec):
    """Where the container of a pod sees its Secrets, by their names."""
    [container] = spec["containers"]
    paths = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    return {volume["secret"]["secretName"]: paths[volume["name"]] for volume in spec["volumes"] if "secret" in volume}


def variables(container, index=0):
    """The environment of the pod with this index, as Kubernetes makes it."""
    for variable in container["env"]:
        if "value" in variable:
            yield variable["name"], variable["value"]
        else:
            field = variable["valueFrom"]["fieldRef"]["fieldPath"]
            assert field in (INDEX, "status.podIP")
            yield variable["name"], str(index) if field == INDEX else field
