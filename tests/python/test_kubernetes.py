"""The manifests in `examples/kubernetes` fit Kubernetes' schemas, and the commands of their pods train together."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from processes import free_port, run_all

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = EXAMPLES / "kubernetes" / "job.yaml"

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def documents():
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all(MANIFESTS.read_text()))


def job_of_pods():
    return next(document for document in documents() if document["kind"] == "Job")


def test_the_manifests_fit_the_schemas():
    validate = pytest.importorskip("kubernetes_validate").validate
    for document in documents():
        validate(document, "1.37", strict=True)


def test_a_mistake_in_a_manifest_would_be_found():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    job = job_of_pods()
    job["spec"]["completionmode"] = job["spec"].pop("completionMode")
    with pytest.raises(kubernetes_validate.ValidationError, match="completionmode"):
        kubernetes_validate.validate(job, "1.37", strict=True)


def test_names_in_the_manifests_belong_together():
    service, job, policy = documents()
    pods = {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
    assert service["spec"]["selector"] == pods
    assert policy["spec"]["podSelector"]["matchLabels"] == pods
    spec = job["spec"]["template"]["spec"]
    assert spec["subdomain"] == service["metadata"]["name"]
    [container] = spec["containers"]
    assert f"--master-addr={job['metadata']['name']}-0.{service['metadata']['name']}" in container["args"]
    assert f"--nnodes={job['spec']['completions']}" in container["args"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert dict(variables(container, 0))["GRADLANE_SECRET_FILE"] == f"{mounted['secret']}/secret"


@pytest.mark.over("quic")
def test_its_pods_train_together(tmp_path):
    job = job_of_pods()
    [container] = job["spec"]["template"]["spec"]["containers"]
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o400)
    shutil.copy(EXAMPLES / "digits.py", tmp_path)
    here = {
        "/secrets/gradlane/secret": str(secret),
        "--master-addr=digits-0.digits": "--master-addr=127.0.0.1",
        "--master-port=29500": f"--master-port={free_port()}",
    }
    pods = []
    for index in range(job["spec"]["completions"]):
        environment = {name: here.get(value, value) for name, value in variables(container, index)}
        words = [re.sub(r"\$\((\w+)\)", lambda name: environment[name[1]], word) for word in container["args"]]
        assert container["command"] == ["torchrun"]
        command = [sys.executable, "-m", "torch.distributed.run", *(here.get(word, word) for word in words)]
        # Each pod is a machine of its own.
        pods.append((command, environment | {"GRADLANE_MACHINE": f"pod-{index}", "OMP_NUM_THREADS": "1"}))
    ended = run_all(pods, timeout=240, cwd=tmp_path)
    assert [pod.code for pod in ended] == [0] * len(pods), "\n".join(pod.output for pod in ended)
    assert "unencrypted" not in ended[0].output, "the secret seals it"


def variables(container, index):
    """The environment of the pod with this index, as Kubernetes makes it."""
    for variable in container["env"]:
        if "value" in variable:
            yield variable["name"], variable["value"]
        else:
            assert variable["valueFrom"]["fieldRef"]["fieldPath"] == INDEX
            yield variable["name"], str(index)
