"""What still uses the transparent model, and in which order it is retired."""

from typing import Any

from imex_dra.diagnose.retirement import StepState, retirement
from imex_dra.diagnose.snapshot import Missing
from tests.diagnose.healthy import Broken, meta, pod

DONE, TO_DO, UNKNOWN = StepState.DONE, StepState.TO_DO, StepState.UNKNOWN


def legacy_pod(name: str, node: str, owner: str = "Job/old") -> dict[str, Any]:
    made = pod(name, node, owner=owner)
    made["spec"].pop("resourceClaims", None)
    container = made["spec"]["containers"][0]
    container["resources"].pop("claims")
    container["env"] = [{"name": "NVIDIA_IMEX_CHANNELS", "value": "0"}]
    return made


def daemon_set(name: str = "nvidia-imex") -> dict[str, Any]:
    return {"metadata": meta(name, "gpu-system"), "spec": {"template": {"spec": {"containers": []}}}}


def states(broken: Broken) -> list[StepState]:
    return [step.state for step in retirement(broken.cluster()).steps]


def test_a_cluster_without_the_old_model_has_nothing_left_to_do() -> None:
    found = retirement(Broken().cluster())
    assert found.workloads == ()
    assert found.finished


def test_workloads_are_listed_with_what_they_use_and_where() -> None:
    broken = Broken()
    for name, node in (("old-0", "r1-n01"), ("old-1", "r1-n00")):
        broken.add("pods", legacy_pod(name, node))
    found = retirement(broken.cluster())
    (workload,) = found.workloads
    assert str(workload.owner) == "Job team/old"
    assert (workload.pods, workload.nodes) == (2, ("r1-n00", "r1-n01"))
    assert found.steps[0].details == (
        "Job team/old: container main sets NVIDIA_IMEX_CHANNELS, which does not claim a channel",
    )
    assert found.steps[1].details == ("r1: r1-n00, r1-n01",)
    assert states(broken) == [TO_DO, TO_DO, DONE, DONE, DONE]


def test_the_partition_with_the_fewest_pods_is_first() -> None:
    broken = Broken()
    for name, node in (("a", "r0-n00"), ("b", "r0-n01"), ("c", "r1-n00")):
        broken.add("pods", legacy_pod(name, node))
    assert retirement(broken.cluster()).steps[1].details == ("r1: r1-n00", "r0: r0-n00, r0-n01")


def test_the_daemon_set_is_to_be_deleted_and_its_own_pods_are_no_workload() -> None:
    broken = Broken()
    broken.add("daemonsets", daemon_set())
    own = legacy_pod("nvidia-imex-x", "r0-n00", owner="DaemonSet/nvidia-imex")
    own["metadata"]["namespace"] = "gpu-system"
    broken.add("pods", own)
    found = retirement(broken.cluster())
    assert found.workloads == ()
    assert found.steps[2].details == ("kubectl -n gpu-system delete daemonset nvidia-imex",)
    assert states(broken) == [DONE, DONE, TO_DO, DONE, DONE]


def test_without_the_driver_it_is_to_be_installed() -> None:
    broken = Broken()
    broken.objects["nvlinknodes"].clear()
    assert states(broken)[3] is TO_DO


def test_what_could_not_be_read_is_unknown() -> None:
    broken = Broken()
    broken.missing.append(Missing("daemonsets", "you may not list daemonsets"))
    found = retirement(broken.cluster())
    assert not found.finished
    assert states(broken)[2] is UNKNOWN
    assert found.missing == ("you may not list daemonsets",)


def test_workloads_with_one_compute_domain_are_the_last_step() -> None:
    broken = Broken()
    broken.job("other-0", "r0-n00", owner="Job/other")
    (detail,) = retirement(broken.cluster()).steps[4].details
    assert "Job team/other" in detail
