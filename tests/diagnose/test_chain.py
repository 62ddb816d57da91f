"""Explanations: the first broken link is that of the rule, and the chain says what it knows."""

import pytest

from imex_dra.api.meta import Key
from imex_dra.base.errors import Rejected
from imex_dra.diagnose.chain import Explanation, State, explain
from imex_dra.diagnose.rule import Link, Rule
from imex_dra.diagnose.rules import RULES
from imex_dra.lint.findings import Severity
from tests.diagnose.breakings import BREAKINGS, waiting
from tests.diagnose.healthy import Broken

OF_THE_JOB = [rule for rule in RULES if rule.severity is Severity.ERROR and rule.id not in ("IMEX201", "IMEX205")]
"""Errors of which a pod of the job is still there."""


def explained(broken: Broken, kind: str, name: str, namespace: str = "team") -> Explanation:
    return explain(broken.cluster(), kind, Key("" if kind == "node" else namespace, name))


def facts(explanation: Explanation) -> dict[str, tuple[str, str]]:
    return {link.link: (link.state, link.fact) for link in explanation.links}


def test_the_chain_of_a_pod_that_runs_is_whole() -> None:
    found = explained(Broken(), "pod", "worker-1")
    assert facts(found) == {
        "pod": ("ok", "worker-1 is Running; containers with the channel: main"),
        "template": ("ok", "imex-channel exists"),
        "ComputeDomain": ("ok", "train is Ready"),
        "claim": ("ok", "worker-1-imex is allocated,reserved on r0-n01"),
        "partition": ("ok", "r0 (aaaa.1) is UP; r0-n01 is Ready"),
        "fabric": ("ok", "ok on r0-n01"),
        "daemon": ("ok", "READY on r0-n01"),
        "channel": ("ok", "channel 7 in r0; 1 of 1 claims prepared"),
    }
    assert (found.findings, found.broken, found.partitions) == ((), None, ())


def test_the_chain_of_a_compute_domain_counts() -> None:
    found = facts(explained(Broken(), "computedomain", "train"))
    assert found["pod"] == ("ok", "2 pods: 2 Running")
    assert found["claim"] == ("ok", "2 claims: 2 allocated,reserved")
    assert found["partition"] == ("ok", "r0 (aaaa.1) is UP; 2 of 2 nodes are Ready")
    assert found["fabric"] == ("ok", "ok on 2 of 2 nodes")
    assert found["daemon"] == ("ok", "READY on 2 of 2 nodes")
    assert found["channel"] == ("ok", "channel 7 in r0; 2 of 2 claims prepared")


def test_a_claim_is_explained_with_its_pod() -> None:
    found = explained(Broken(), "claim", "worker-0-imex")
    assert found.subject == "ResourceClaim team/worker-0-imex"
    assert facts(found)["pod"][1].startswith("worker-0 is Running")


def test_a_node_has_the_links_from_the_partition_on() -> None:
    found = explained(Broken(), "node", "r1-n00")
    assert facts(found) == {
        "partition": ("ok", "r1 (bbbb.1) is UP; r1-n00 is Ready"),
        "fabric": ("ok", "ok on r1-n00"),
        "daemon": ("ok", "READY on r1-n00"),
        "channel": ("ok", "no claim is allocated here"),
    }


@pytest.mark.parametrize("rule", OF_THE_JOB, ids=lambda rule: rule.id)
def test_the_first_broken_link_is_that_of_the_rule(rule: Rule) -> None:
    """For the pod that the breaking concerns; a node without pods is explained itself."""
    broken = Broken()
    BREAKINGS[rule.id](broken)
    pods = {pod["metadata"]["name"]: pod for pod in broken.objects["pods"]}
    name = "worker-0" if rule.id in ("IMEX403", "IMEX404", "IMEX405", "IMEX415") else "worker-1"
    if name in pods:
        found = explained(broken, "pod", name, pods[name]["metadata"]["namespace"])
    else:
        found = explained(broken, "node", "r0-n01")
    assert found.broken is not None
    assert (found.broken.link, found.findings[0].id) == (rule.link, rule.id)


def test_a_pod_that_waits_has_the_nodes_that_fit_per_partition() -> None:
    broken = Broken()
    BREAKINGS["IMEX402"](broken)
    found = explained(broken, "pod", "worker-2")
    assert [str(fit) for fit in found.partitions] == [
        "r0: 1 of 2 nodes fit; 1 with too few free GPUs",
        "r1: 0 of 2 nodes fit; 2 outside of r0, where pods of its affinity run",
    ]
    assert {link.link: link.state for link in found.links}[Link.DAEMON] is State.WAITING


def gated(broken: Broken, *names: str) -> None:
    for name in names:
        waiting(broken, name)
        pod = broken.get("pods", name)
        pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}, {"name": "example.com/quota"}]
        pod["status"]["conditions"][0] |= {"reason": "SchedulingGated", "message": "Scheduling is blocked"}


GATES = "kueue.x-k8s.io/admission, example.com/quota"


def test_a_pod_with_scheduling_gates_waits_for_whoever_set_them() -> None:
    broken = Broken()
    gated(broken, "worker-1")
    found = explained(broken, "pod", "worker-1")
    assert (found.findings, found.broken, found.partitions) == ((), None, ())
    state, fact = facts(found)["pod"]
    assert state == "waiting"
    assert fact.startswith(
        f"worker-1 is Pending; waits until its scheduling gates are removed: {GATES}; containers"
    )
    found = explained(broken, "computedomain", "train")
    expected = f"2 pods: 1 Running, 1 Pending; with scheduling gates: worker-1 ({GATES})"
    assert facts(found)["pod"] == ("waiting", expected)


def test_a_job_whose_pods_all_have_scheduling_gates_is_not_too_large() -> None:
    broken = Broken()
    broken.job("worker-2", "")
    gated(broken, "worker-0", "worker-1", "worker-2")
    assert explained(broken, "pod", "worker-2").findings == ()


PULL = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}


@pytest.mark.parametrize(
    ("phase", "waits", "shown"),
    [
        ("Pending", PULL, 'container main waits: ImagePullBackOff: Back-off pulling image "x"'),
        (
            "Running",
            {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"},
            "container main waits: CrashLoopBackOff: back-off 5m0s restarting failed container",
        ),
        ("Pending", {"message": "m"}, "container main waits: m"),
        ("Pending", {"reason": "ContainerCreating"}, ""),
    ],
)
def test_what_the_kubelet_says_of_a_container_that_does_not_start_is_shown(
    phase: str, waits: dict[str, str], shown: str
) -> None:
    broken = Broken()
    status = broken.get("pods", "worker-1")["status"]
    status |= {"phase": phase, "containerStatuses": [{"name": "main", "state": {"waiting": waits}}]}
    found = explained(broken, "pod", "worker-1")
    assert (found.findings, found.broken) == ((), None)
    middle = f"; {shown}" if shown else ""
    expected = f"worker-1 is {phase}{middle}; containers with the channel: main"
    assert facts(found)["pod"] == ("waiting" if shown else "ok", expected)


def test_pods_of_a_compute_domain_that_do_not_start_are_named() -> None:
    broken = Broken()
    status = broken.get("pods", "worker-1")["status"]
    status["containerStatuses"] = [{"name": "main", "state": {"waiting": PULL}}]
    state, fact = facts(explained(broken, "computedomain", "train"))["pod"]
    assert (state, fact) == ("waiting", "2 pods: 2 Running; a container waits in worker-1 (ImagePullBackOff)")


def test_what_is_still_to_come_is_told_apart_from_what_is_done() -> None:
    broken = Broken()
    BREAKINGS["IMEX303"](broken)
    broken.get("computedomains", "train")["status"]["status"] = "NotReady"
    states = {link.link: link.state for link in explained(broken, "pod", "worker-1").links}
    assert states[Link.CHANNEL] is State.WAITING
    assert states[Link.DOMAIN] is State.WAITING
    assert states[Link.CLAIM] is State.OK


def test_a_finding_on_the_own_node_comes_before_that_of_another_pod() -> None:
    broken = Broken()
    for name in ("r0-n00", "r0-n01"):
        broken.get("nvlinknodes", name)["status"]["fabric"] = {"state": "broken"}
    assert explained(broken, "pod", "worker-1").findings[0].nodes == ("r0-n01",)
    assert explained(broken, "pod", "worker-0").findings[0].nodes == ("r0-n00",)


def test_a_pod_without_a_channel_has_only_itself() -> None:
    broken = Broken()
    del broken.get("pods", "worker-1")["spec"]["resourceClaims"]
    broken.get("pods", "worker-1")["spec"]["containers"][0]["resources"] = {}
    assert facts(explained(broken, "pod", "worker-1")) == {
        "pod": ("ok", "worker-1 is Running, and claims no channel")
    }


def test_a_computedomain_that_is_gone_is_the_broken_link_of_a_pod_that_runs() -> None:
    broken = Broken()
    broken.get("computedomains", "train")["metadata"]["uid"] = "uid-new"
    for kind, name in (("pod", "worker-1"), ("claim", "worker-1-imex")):
        found = explained(broken, kind, name)
        assert found.broken is not None
        assert found.broken.link is Link.DOMAIN
        assert found.broken.fact == "none has the UID that claim worker-1-imex names"
    broken.hide("computedomains")
    assert facts(explained(broken, "pod", "worker-1"))["ComputeDomain"] == ("waiting", "")


def test_findings_of_other_nodes_do_not_concern_a_pod() -> None:
    broken = Broken()
    broken.get("nvlinknodes", "r1-n00")["status"]["fabric"] = {"state": "broken"}
    assert explained(broken, "pod", "worker-1").findings == ()
    assert explained(broken, "node", "r1-n01").findings == ()
    assert [finding.id for finding in explained(broken, "node", "r1-n00").findings] == ["IMEX303"]


@pytest.mark.parametrize(
    ("kind", "name", "namespace", "message"),
    [
        ("pod", "worker-7", "team", "there is no Pod team/worker-7; did you mean worker-1?"),
        ("pod", "worker-1", "default", "there is no Pod default/worker-1; namespace team has one"),
        ("computedomain", "x", "team", "there is no ComputeDomain team/x"),
        ("claim", "x", "team", "there is no ResourceClaim team/x"),
        ("node", "r0-n0", "", "there is no Node r0-n0; did you mean r0-n01?"),
    ],
)
def test_an_object_that_does_not_exist_is_rejected(kind: str, name: str, namespace: str, message: str) -> None:
    with pytest.raises(Rejected) as error:
        explained(Broken(), kind, name, namespace)
    assert str(error.value) == message


def test_nodes_that_fit_are_not_counted_for_a_pod_without_its_template() -> None:
    broken = Broken()
    BREAKINGS["IMEX101"](broken)
    assert explain(broken.cluster(), "pod", Key("team", "worker-1")).partitions == ()


@pytest.mark.parametrize(
    ("state", "fact"),
    [("READY", "READY on r0-n01, started 2026-11-18 01:02 UTC"), ("UNAVAILABLE", "UNAVAILABLE on r0-n01")],
)
def test_since_when_a_daemon_runs_is_said_only_while_it_is_ready(state: str, fact: str) -> None:
    broken = Broken()
    status = broken.get("nvlinknodes", "r0-n01")["status"]
    status |= {"imexState": state, "imexStartedAt": "2026-11-18T01:02:03.000004Z"}
    links = explain(broken.cluster(), "node", Key("", "r0-n01")).links
    assert [link.fact for link in links if link.link is Link.DAEMON] == [fact]
