"""The manifests in `examples/kubernetes` fit the schemas of their kinds. The commands of their pods train together."""

import base64
import contextlib
import http.server
import json
import os
import re
import shutil
import stat
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import Running, free_port, run_all

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = EXAMPLES / "kubernetes"

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
JOB_NAME = "batch.kubernetes.io/job-name"

LEADER_WORKER_SET = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object",
            "required": ["leaderWorkerTemplate"],
            "additionalProperties": False,
            "properties": {
                "replicas": {"type": "integer", "minimum": 0},
                "leaderWorkerTemplate": {
                    "type": "object",
                    "required": ["workerTemplate"],
                    "additionalProperties": False,
                    "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "restartPolicy": {
                            "enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]
                        },
                        "workerTemplate": {"type": "object"},
                    },
                },
            },
        },
    },
}
"""The fields of a LeaderWorkerSet that the manifest may use, as version 0.10.0 defines them.

No package of a registry has its whole definition. The template of its pods is one of Kubernetes and is checked as one.
"""


def documents(manifest):
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((MANIFESTS / f"{manifest}.yaml").read_text()))


def document(manifest, kind, name=None):
    [found] = [d for d in documents(manifest) if d["kind"] == kind and name in (None, d["metadata"]["name"])]
    return found


def check(document):
    """Raises unless the document fits the schema of its kind, and has no field that the schema does not know."""
    validate = pytest.importorskip("kubernetes_validate").validate
    group = document["apiVersion"].partition("/")[0]
    if group == "leaderworkerset.x-k8s.io":
        pytest.importorskip("jsonschema").validate(document, LEADER_WORKER_SET)
        template = document["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        validate({"apiVersion": "v1", "kind": "PodTemplate", "template": template}, "1.37", strict=True)
    elif group == "trainer.kubeflow.org":
        models = pytest.importorskip("kubeflow_trainer_api.models")
        model = getattr(models, f"TrainerV1alpha1{document['kind']}")
        assert model.from_dict(document).to_dict() == document, "a field is not known"
    else:
        validate(document, "1.37", strict=True)


@pytest.mark.parametrize("manifest", [path.stem for path in sorted(MANIFESTS.glob("*.yaml"))])
def test_the_manifests_fit_the_schemas(manifest):
    for document in documents(manifest):
        check(document)


@pytest.mark.parametrize(
    ("manifest", "kind", "path", "mistake"),
    [
        ("job", "Job", ["spec", "completionMode"], "completionmode"),
        ("servers", "StatefulSet", ["spec", "serviceName"], "service"),
        ("leaderworkerset", "LeaderWorkerSet", ["spec", "replicas"], "replica"),
        ("leaderworkerset", "LeaderWorkerSet", ["spec", "leaderWorkerTemplate", "workerTemplate", "spec"], "specs"),
        ("trainjob", "TrainJob", ["spec", "trainer", "numNodes"], "nodes"),
        ("trainjob", "TrainingRuntime", ["spec", "template", "spec", "replicatedJobs"], "jobs"),
    ],
)
def test_a_mistake_in_a_manifest_would_be_found(manifest, kind, path, mistake):
    wrong = document(manifest, kind)
    *outer, field = path
    place = wrong
    for name in outer:
        place = place[name]
    place[mistake] = place.pop(field)
    with pytest.raises(Exception, match=rf"{mistake}|is not known"):
        check(wrong)


def test_names_in_the_manifest_of_a_job_belong_together():
    service, job, policy = documents("job")
    pods = {JOB_NAME: job["metadata"]["name"]}
    assert service["spec"]["selector"] == pods
    assert policy["spec"]["podSelector"]["matchLabels"] == pods
    spec = job["spec"]["template"]["spec"]
    assert spec["subdomain"] == service["metadata"]["name"]
    [container] = spec["containers"]
    assert f"--master-addr={job['metadata']['name']}-0.{service['metadata']['name']}" in container["args"]
    assert f"--nnodes={job['spec']['completions']}" in container["args"]
    assert dict(variables(container))["GRADLANE_SECRET_FILE"] == f"{mounted(spec)['gradlane']}/secret"


def test_names_in_the_manifest_of_a_leader_worker_set_belong_together():
    workers, policy = documents("leaderworkerset")
    assert list(policy["spec"]["podSelector"]["matchLabels"].items()) == [
        ("leaderworkerset.sigs.k8s.io/name", workers["metadata"]["name"])
    ]
    spec = workers["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    [container] = spec["containers"]
    assert dict(variables(container))["GRADLANE_SECRET_FILE"] == f"{mounted(spec)['gradlane']}/secret"


def test_names_in_the_manifest_of_a_train_job_belong_together():
    runtime, job, policy = documents("trainjob")
    reference = job["spec"]["runtimeRef"]
    assert (reference["kind"], reference["name"]) == (runtime["kind"], runtime["metadata"]["name"])
    assert policy["spec"]["podSelector"]["matchLabels"] == {"jobset.sigs.k8s.io/jobset-name": job["metadata"]["name"]}
    spec = pods_of_runtime(runtime)
    # Kubeflow gives torchrun's settings to the container of this name, in the pods of the job of this name.
    [container] = spec["containers"]
    assert container["name"] == "node"
    assert dict(variables(container))["GRADLANE_SECRET_FILE"] == f"{mounted(spec)['gradlane']}/secret"


def test_names_in_the_manifest_with_servers_belong_together():
    coordinator = document("servers", "Job", "digits-coordinator")
    servers, workers = document("servers", "StatefulSet"), document("servers", "Job", "digits")
    labels = {
        "digits-coordinator": {JOB_NAME: coordinator["metadata"]["name"]},
        "digits-server": servers["spec"]["template"]["metadata"]["labels"],
        "digits": {JOB_NAME: workers["metadata"]["name"]},
    }
    for found in documents("servers"):
        if found["kind"] in ("Service", "NetworkPolicy"):
            selector = found["spec"].get("selector") or found["spec"]["podSelector"]["matchLabels"]
            assert selector == labels[found["metadata"]["name"]]
    assert document("servers", "Service", servers["spec"]["serviceName"])
    [role, binding] = [document("servers", kind) for kind in ("Role", "RoleBinding")]
    [rule] = role["rules"]
    secret = document("servers", "Secret")["metadata"]["name"]
    assert rule["resourceNames"] == [secret]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = document("servers", "ServiceAccount")["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == [account]
    assert coordinator["spec"]["template"]["spec"]["serviceAccountName"] == account
    for pods in (servers, workers):
        spec = pods["spec"]["template"]["spec"]
        [container] = spec["containers"]
        assert dict(variables(container))["GRADLANE_JOIN_FILE"] == f"{mounted(spec)[secret]}/join"
    [publisher] = coordinator["spec"]["template"]["spec"]["initContainers"]
    assert dict(variables(publisher))["JOIN_SECRET"] == secret
    [container] = coordinator["spec"]["template"]["spec"]["containers"]
    workers_count, servers_count = workers["spec"]["completions"], servers["spec"]["replicas"]
    assert {f"--workers={workers_count}", f"--servers={servers_count}"} < set(container["args"])
    [worker] = workers["spec"]["template"]["spec"]["containers"]
    assert dict(variables(worker))["GRADLANE_SIZE"] == str(workers_count)


@pytest.mark.over("quic")
def test_the_pods_of_a_job_train_together(host):
    job = document("job", "Job")
    [container] = job["spec"]["template"]["spec"]["containers"]
    del host.here["--check"]
    host.train([host.pod(container, index) for index in range(job["spec"]["completions"])])


@pytest.mark.over("quic")
def test_the_pods_of_a_leader_worker_set_train_together(host):
    template = document("leaderworkerset", "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    [container] = template["workerTemplate"]["spec"]["containers"]
    # Set by its controller in each pod of a set of two.
    group = {"LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "127.0.0.1"}
    host.train([host.pod(container, index, group | {"LWS_WORKER_INDEX": str(index)}) for index in range(2)])


@pytest.mark.over("quic")
def test_the_pods_of_a_train_job_train_together(host):
    runtime, job = document("trainjob", "TrainingRuntime"), document("trainjob", "TrainJob")
    [container] = pods_of_runtime(runtime)["containers"]
    trainer = job["spec"]["trainer"]
    container |= {"command": trainer["command"], "args": trainer["args"]}
    # Set by its controller in each pod of a job of two nodes.
    settings = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": host.master_port,
    }
    host.train([host.pod(container, index, settings | {"PET_NODE_RANK": str(index)}) for index in range(2)])


@pytest.mark.over("quic")
def test_a_coordinator_servers_and_workers_in_pods_train_together(host):
    coordinator = document("servers", "Job", "digits-coordinator")["spec"]["template"]["spec"]
    [deciding], [publishing] = coordinator["containers"], coordinator["initContainers"]
    servers, workers = document("servers", "StatefulSet")["spec"], document("servers", "Job", "digits")["spec"]
    [serving], [training] = (pods["template"]["spec"]["containers"] for pods in (servers, workers))

    def probe(container):
        """The exit codes of the commands of its probes."""
        probed = [{**container, "command": command, "args": []} for command in probes_of(container)]
        return {ended.code for ended in run_all([host.pod(container, 0) for container in probed], timeout=60)}

    with contextlib.ExitStack() as pods:
        api = pods.enter_context(StandInApi(host.join_secret))
        account = {"KUBERNETES_API": api.address, "KUBERNETES_ACCOUNT": str(host.service_account())}
        assert probe(deciding) == probe(serving) == {75}, "there is no coordinator yet"
        for container in (deciding, publishing):
            command, environment = host.pod(container, 0, account)
            pods.enter_context(Running(command, env=environment, cwd=host.folder))
        assert api.published.wait(60), "the publisher puts the join string into the Secret"
        assert stat.S_IMODE(host.join_secret.stat().st_mode) == 0o400
        assert probe(deciding) == {0}
        assert probe(serving) == {0}, "with the join string from the Secret"
        here = [host.pod(serving, index) for index in range(servers["replicas"])]
        host.train([*here, *(host.pod(training, index) for index in range(workers["completions"]))])
    assert api.refused == []


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


@pytest.fixture
def host(tmp_path):
    programs = {
        "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
        "python": f'exec {sys.executable} "$@"',
        "gradlane-server": f'exec {sys.executable} -m gradlane "$@"',
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
        "--master-addr=digits-0.digits": "--master-addr=127.0.0.1",
        "--master-port=29500": f"--master-port={master_port}",
        "--bind=0.0.0.0:7000": f"--bind=127.0.0.1:{free_port()}",
        "--advertise=digits-coordinator": "--advertise=localhost",
        "--bind=0.0.0.0:7001": "--bind=127.0.0.1:0",
        "status.podIP": "127.0.0.1",
        "--check": "--steps=20",  # so few that the accuracy says nothing
    }
    return Host(tmp_path, here, master_port, join_secret)


class StandInApi:
    """The part of Kubernetes' API that replaces an entry of a Secret, and the node that writes it into a file."""

    def __init__(self, file):
        api = self
        self.published, self.refused = threading.Event(), []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PATCH(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked = (self.path, self.headers["Authorization"], self.headers["Content-Type"], [*body["data"]])
                is_right = asked == (
                    "/api/v1/namespaces/default/secrets/digits-join",
                    "Bearer token of the account",
                    "application/merge-patch+json",
                    ["join"],
                )
                if is_right:
                    draft = file.with_suffix(".draft")
                    draft.write_bytes(base64.b64decode(body["data"]["join"]))
                    draft.chmod(0o400)
                    draft.rename(file)
                    api.published.set()
                else:
                    api.refused.append(asked)
                self.send_response(200 if is_right else 403)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def pods_of_runtime(runtime):
    [job] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["name"] == "node"
    return job["template"]["spec"]["template"]["spec"]


def probes_of(container):
    """The commands of its probes."""
    probes = [probe["exec"]["command"] for name, probe in container.items() if name.endswith("Probe")]
    assert probes
    return probes


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
