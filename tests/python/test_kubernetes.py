"""The manifests in `examples/kubernetes` fit the schemas of their kinds. The commands of their pods train together."""

import contextlib
import re
import stat

import pytest
from gradlane import _core
from pods import JOB_NAME, MANIFESTS, StandInApi, a_host, document, documents, mounted, variables
from processes import Running, run_all

__all__ = ["a_host"]  # the fixture `host`

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


@pytest.mark.parametrize("manifest", [path.stem for path in sorted(MANIFESTS.glob("*.yaml"))])
def test_the_settings_in_a_manifest_exist_and_have_values_that_are_taken(manifest):
    text = (MANIFESTS / f"{manifest}.yaml").read_text()
    names = {name.removeprefix("GRADLANE_").lower() for name in re.findall(r"\bGRADLANE_[A-Z_]+\b", text)}
    report = _core.config_report({})
    assert names and all(re.search(rf"^  {name}  ", report, re.MULTILINE) for name in names), names
    for document in documents(manifest):
        if document["kind"] == "ConfigMap":
            given = {name.removeprefix("GRADLANE_").lower(): value for name, value in document["data"].items()}
            assert _core.config_report(given)  # raises an error for a value that is refused


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
        api = pods.enter_context(StandInApi(host.folder, "digits-join", "join"))
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


def probes_of(container):
    """The commands of its probes."""
    probes = [probe["exec"]["command"] for name, probe in container.items() if name.endswith("Probe")]
    assert probes
    return probes


def pods_of_runtime(runtime):
    [job] = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["name"] == "node"
    return job["template"]["spec"]["template"]["spec"]
