from cluster.rollout import Object, is_ready, pending, reasons


def deployment(**status: int) -> Object:
    return {
        "kind": "Deployment",
        "metadata": {"name": "operator", "generation": 2},
        "spec": {"replicas": 2},
        "status": {"observedGeneration": 2, **status},
    }


def daemon_set(**status: int) -> Object:
    return {
        "kind": "DaemonSet",
        "metadata": {"name": "nodeagent", "generation": 1},
        "spec": {},
        "status": {"observedGeneration": 1, **status},
    }


def test_a_deployment_is_awaited_until_all_are_available() -> None:
    assert pending([deployment(replicas=2, updatedReplicas=2, availableReplicas=1)]) == [
        "operator 1/2"
    ]
    assert pending([deployment(replicas=2, updatedReplicas=2, availableReplicas=2)]) == []


def test_pods_of_the_last_version_do_not_count() -> None:
    assert pending([deployment(replicas=3, updatedReplicas=2, availableReplicas=3)])


def test_a_status_from_before_the_change_does_not_count() -> None:
    old = deployment(replicas=2, updatedReplicas=2, availableReplicas=2, observedGeneration=1)
    assert pending([old]) == ["operator 0/2"]


def test_a_daemon_set_waits_for_each_of_its_nodes() -> None:
    counts = {"desiredNumberScheduled": 2, "updatedNumberScheduled": 2}
    assert pending([daemon_set(**counts, numberAvailable=1)]) == ["nodeagent 1/2"]
    assert pending([daemon_set(**counts, numberAvailable=2)]) == []


def test_a_daemon_set_nobody_has_looked_at_is_awaited() -> None:
    assert pending([daemon_set(observedGeneration=0)]) == ["nodeagent 0/1"]


def test_a_daemon_set_without_nodes_is_not_awaited() -> None:
    assert pending([daemon_set(desiredNumberScheduled=0)]) == []


def test_why_a_pod_is_not_ready_is_said_in_words() -> None:
    pod: Object = {
        "metadata": {"name": "a"},
        "status": {
            "conditions": [
                {"type": "Ready", "status": "False"},
                {"type": "PodScheduled", "status": "False", "message": "0/1 nodes available"},
            ],
            "containerStatuses": [
                {
                    "name": "main",
                    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
                    "lastState": {"terminated": {"reason": "Error"}},
                }
            ],
        },
    }
    assert not is_ready(pod)
    assert reasons(pod) == [
        "PodScheduled: 0/1 nodes available",
        "container main waiting: CrashLoopBackOff back-off",
        "container main terminated: Error",
    ]
