"""The manifest of an elastic job in `examples/kubernetes`: what belongs together in it, and its pods as processes that come and go."""

import contextlib
import json
import os
import re
import signal
import time

import pytest
from pods import StandInApi, a_host, document, documents, mounted, variables
from processes import Running, run_all

__all__ = ["a_host"]  # the fixture `host`


def test_names_in_the_manifest_of_an_elastic_job_belong_together():
    deployments = {found["metadata"]["name"]: found for found in documents("elastic") if found["kind"] == "Deployment"}
    assert set(deployments) == {"digits-coordinator", "digits-server", "digits"}
    for name, deployment in deployments.items():
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert labels == {"app.kubernetes.io/name": name} == deployment["spec"]["selector"]["matchLabels"]
    for found in documents("elastic"):
        if found["kind"] in ("Service", "NetworkPolicy", "PodDisruptionBudget"):
            selector = found["spec"].get("selector") or found["spec"]["podSelector"]
            assert selector.get("matchLabels", selector) == {"app.kubernetes.io/name": found["metadata"]["name"]}
    [role, binding] = [document("elastic", kind) for kind in ("Role", "RoleBinding")]
    secret, account = (document("elastic", kind)["metadata"]["name"] for kind in ("Secret", "ServiceAccount"))
    assert role["rules"][0]["resourceNames"] == [secret] and binding["roleRef"]["name"] == role["metadata"]["name"]
    coordinator, *members = (deployments[name]["spec"]["template"]["spec"] for name in deployments)
    assert coordinator["serviceAccountName"] == account == binding["subjects"][0]["name"]
    [volume] = coordinator["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == document("elastic", "PersistentVolumeClaim")["metadata"]["name"]
    [publisher], [deciding] = coordinator["initContainers"], coordinator["containers"]
    published = dict(variables(publisher))
    assert published["JOIN_SECRET"] == secret
    # Servers and workers come with a token of their role, also those that come late.
    joins = {dict(variables(spec["containers"][0]))["GRADLANE_JOIN_FILE"] for spec in members}
    assert joins == {f"{mounted(members[0])[secret]}/{role}" for role in published["JOIN_TOKENS"].split()}
    # Both containers of the coordinator look into the same places of the volume.
    places = {(name, published[name]) for name in ("GRADLANE_JOIN_FILE", "GRADLANE_STATE_DIR")}
    assert places <= set(variables(deciding))
    settings = document("elastic", "ConfigMap")
    for container in (deciding, *(spec["containers"][0] for spec in members)):
        assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
    servers, workers = (deployments[name]["spec"]["replicas"] for name in ("digits-server", "digits"))
    assert {f"--workers={workers}", f"--servers={servers}", "--resume"} < set(deciding["args"])
    fewest, most = map(int, settings["data"]["GRADLANE_ELASTIC"].split(":"))
    assert fewest <= workers <= most
    assert document("elastic", "PodDisruptionBudget", "digits")["spec"]["minAvailable"] == fewest
    # A worker has the time that Gradlane gives it, and some to end.
    [grace] = re.findall(r"^(\d+)s$", settings["data"]["GRADLANE_LEAVE_GRACE"])
    assert members[1]["terminationGracePeriodSeconds"] >= int(grace) + 10


@pytest.mark.over("quic")
def test_pods_of_an_elastic_job_are_drained_killed_and_started_again_while_it_trains(host):
    deployments = [document("elastic", "Deployment", name)["spec"] for name in ("digits-coordinator", "digits-server", "digits")]
    coordinator, servers, workers = (deployment["template"]["spec"] for deployment in deployments)
    [deciding], [publishing], [serving], [training] = (
        pods for pods in (coordinator["containers"], coordinator["initContainers"], servers["containers"], workers["containers"])
    )
    settings = document("elastic", "ConfigMap")["data"] | {"GRADLANE_DEAD_TIMEOUT": "3s"}

    with contextlib.ExitStack() as pods:
        api = pods.enter_context(StandInApi(host.folder, "digits-tokens", "worker", "server"))
        account = {"KUBERNETES_API": api.address, "KUBERNETES_ACCOUNT": str(host.service_account())}

        def pid_file(index):
            return {"PID_FILE": str(host.folder / f"pid-{index}")}

        def start(container, index, **more):
            command, environment = host.pod(container, index, settings | account | more)
            return pods.enter_context(Running(command, env=environment, cwd=host.folder))

        def drain(index):
            """Runs what Kubernetes runs before it ends the pod of a worker."""
            command = training["lifecycle"]["preStop"]["exec"]["command"]
            [ended] = run_all([host.pod({**training, "command": command, "args": []}, index, settings | pid_file(index))], timeout=60)
            assert ended.code == 0, ended.output

        def until(**expected):
            """Waits until the job runs with so many servers, and workers that train."""
            deadline = time.monotonic() + 90
            while True:
                asking = {**deciding, "command": ["gradlane", "status", "--json"], "args": []}
                [told] = run_all([host.pod(asking, 0, settings)], timeout=30)
                job = json.loads(told.output) if told.code == 0 else {"phase": told.output, "members": []}
                # A worker in its first step would be ended by SIGTERM.
                there = [m["role"] for m in job["members"] if m["health"] == "alive" and (m["round"] or m["role"] == "server")]
                if job["phase"] == "running" and {role: there.count(role) for role in expected} == expected:
                    return
                assert time.monotonic() < deadline, told.output

        start(publishing, 0)
        first = start(deciding, 0)
        assert api.published.wait(60), "the publisher puts tokens into the Secret"
        serve = [start(serving, index) for index in range(deployments[1]["replicas"])]
        train = [start(training, index, **pid_file(index)) for index in range(deployments[2]["replicas"])]
        until(worker=4, server=3)
        drain(3)
        ended = train.pop().end(60)
        assert ended.code == 0, ended.output
        until(worker=3, server=3)
        serve.pop().interrupt(signal.SIGKILL)
        until(worker=3, server=2)
        first.interrupt(signal.SIGKILL)
        first.end(30)  # its address is free when all processes of the pod have ended
        second = start(deciding, 0)
        until(worker=3, server=2)
        os.kill(second.pid, signal.SIGTERM)  # Kubernetes sends it to the first process of a container alone
        ended = second.end(30)
        assert ended.code == 75 and "--resume continues its job" in ended.output, ended.output
        third = start(deciding, 0)
        until(worker=3, server=2)
        serve.append(start(serving, 2))
        train.append(start(training, 4, **pid_file(4)))
        until(worker=4, server=3)
        for index in (0, 1, 2, 4):
            drain(index)
        ended = [pod.end(60) for pod in (*train, *serve, third)]
        assert [pod.code for pod in ended] == [0] * len(ended), "\n".join(pod.output for pod in ended)
    assert api.refused == []
