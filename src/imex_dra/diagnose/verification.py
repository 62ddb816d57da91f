"""What `imex verify` checks, in the order in which a reader would: groups of rules with a title.

A check whose objects could not be read is neither passed nor failed, and neither is one that is not finished: its
pods wait for something that a finding of another check explains, or that takes a moment. A test makes sure that
every rule belongs to one check.
"""

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.meta import Key
from imex_dra.api.reasons import listed
from imex_dra.api.views import PODS
from imex_dra.base.errors import Rejected
from imex_dra.diagnose.chain import KINDS, check_read, only_namespace, subject_of, unknown_kind
from imex_dra.diagnose.cluster import Cluster, is_channel_claim
from imex_dra.diagnose.clusterrules import controller_is_known
from imex_dra.diagnose.facts import claim_state, waiting_pods
from imex_dra.diagnose.pods import ClusterPod, Owner
from imex_dra.diagnose.rule import Finding
from imex_dra.diagnose.rules import diagnose
from imex_dra.diagnose.scope import EVERYTHING, Scope, of_namespace, of_pods
from imex_dra.diagnose.setuprules import dra_is_known
from imex_dra.lint.findings import Severity
from imex_dra.lint.manifests import nearest
from imex_dra.lint.workloads import PLACES


class Verdict(StrEnum):
    PASSED = "passed"
    WARNING = "warning"
    FAILED = "failed"
    WAITING = "waiting"
    """Something is not there yet, and no finding of this check says why."""
    UNKNOWN = "unknown"
    """Its objects could not be read, or do not say it."""


class Count(NamedTuple):
    text: str = ""
    complete: bool = True


class Check(NamedTuple):
    title: str
    rules: tuple[str, ...]
    needs: tuple[str, ...]
    """Kinds, by plural."""
    counted: Callable[[Cluster, Scope], Count] = lambda *_: Count()
    known: Callable[[Cluster], bool] = lambda _: True
    """Whether the snapshot can say it, if it has the kinds."""


def _claims(cluster: Cluster, scope: Scope) -> Count:
    pods = [pod for pod in cluster.claiming if scope.everything or pod.key in scope.pods]
    claims = [made for pod in pods for claim in pod.claims if (made := cluster.claim_of(pod, claim))]
    channel = [claim for claim in claims if is_channel_claim(claim)]
    working = sum(claim_state(claim) == "allocated,reserved" for claim in channel)
    return Count(f"{working} of {len(channel)}", working == len(channel)) if channel else Count("none")


def _domains(cluster: Cluster, scope: Scope) -> Count:
    chosen = [domain for key, domain in cluster.domains.items() if scope.everything or key in scope.domains]
    used = [domain for domain in chosen if cluster.pods_of_domain.get(domain.metadata.uid)]
    ready = sum(domain.status.status == "Ready" for domain in used)
    return Count(f"{ready} of {len(used)} with pods", ready == len(used)) if used else Count("none has pods")


def _containers(cluster: Cluster, scope: Scope) -> Count:
    """What keeps a container from starting may have nothing to do with its channel; but it does not use it yet."""
    waits = waiting_pods(pod for pod in cluster.claiming if scope.everything or pod.key in scope.pods)
    return Count(f"a container waits in {listed(waits)}", complete=False) if waits else Count()


def _nodes(cluster: Cluster, scope: Scope) -> Count:
    nodes = [n for n in cluster.nvlink_nodes if scope.everything or n in scope.nodes]
    # Complete also if a node is cordoned: whatever else keeps a node from serving is a finding.
    return Count(f"{sum(map(cluster.serves, nodes))} of {len(nodes)} nodes" if nodes else "none")


_DRIVER = Check(
    "the driver is installed, and runs",
    ("IMEX201", "IMEX202", "IMEX203", "IMEX204", "IMEX205"),
    ("deviceclasses", "leases", "nvlinknodes", "nvlinkpartitions"),
    known=controller_is_known,
)
_SETUP = (
    Check("Kubernetes has DRA, and no kubelet is too old", ("IMEX210", "IMEX211"), ("nodes",), known=dra_is_known),
    Check("the container runtimes support CDI", ("IMEX212", "IMEX213"), ("nodes",)),
    Check("nodes with GPUs are labeled, with one GPU driver per clique", ("IMEX214", "IMEX217"), ("nodes",)),
    Check("nothing else runs nvidia-imex, or uses its ports", ("IMEX215", "IMEX216"), ("daemonsets", "pods")),
)
CHECKS = (
    _DRIVER,
    *_SETUP,
    Check(
        "resourceClaimTemplateName of every pod is a template of its namespace",
        ("IMEX101", "IMEX103", "IMEX407"),
        ("pods", "resourceclaimtemplates", "computedomains"),
    ),
    Check(
        "every container that should have the channel lists the claim, and asks for it in no other way",
        ("IMEX105", "IMEX107", "IMEX150", "IMEX151", "IMEX152"),
        ("pods",),
    ),
    Check(
        "claims are allocated,reserved",
        ("IMEX401", "IMEX402", "IMEX403"),
        ("pods", "resourceclaims", "nodes", "resourceslices"),
        _claims,
    ),
    Check(
        "ComputeDomains are Ready",
        ("IMEX405", "IMEX406", "IMEX409", "IMEX412"),
        ("computedomains", "pods", "resourceclaims"),
        _domains,
    ),
    Check("all pods of a ComputeDomain are in one NVLink partition", ("IMEX410", "IMEX413"), ("pods", "nodes")),
    Check(
        "each workload has a ComputeDomain of its own",
        ("IMEX411",),
        ("pods", "jobs", "replicasets", "statefulsets"),
    ),
    Check(
        "the nodes can serve claims: Ready, members, fabric ok, IMEX daemon READY",
        ("IMEX301", "IMEX302", "IMEX303", "IMEX304", "IMEX305", "IMEX306", "IMEX307", "IMEX308"),
        ("nodes", "nvlinknodes", "nvlinkpartitions", "resourceslices"),
        _nodes,
    ),
    Check("the IMEX daemons reach each other", ("IMEX310",), ("nvlinknodes", "nvlinkpartitions")),
    Check(
        "the channel is present, and the same on every node",
        ("IMEX404", "IMEX408", "IMEX414", "IMEX415"),
        ("pods", "resourceclaims", "nvlinknodes", "nvlinkpartitions", "events"),
        _containers,
    ),
    Check(
        "versions, channel counts and labels of a partition agree; channels are isolated",
        ("IMEX311", "IMEX312", "IMEX313", "IMEX314", "IMEX315", "IMEX316"),
        ("nvlinknodes", "nvlinkpartitions", "daemonsets"),
    ),
)


_AFTER_INSTALLATION = {"IMEX201", "IMEX301", "IMEX311"}
PREFLIGHT = (*_SETUP, *(check for check in CHECKS if not _AFTER_INSTALLATION.isdisjoint(check.rules)))
"""Of a cluster, not of its workloads."""

_IF_INSTALLED = {"IMEX201", "IMEX202", "IMEX204", "IMEX205"}


class CheckResult(Struct, frozen=True):
    title: str
    verdict: Verdict
    count: str


class Verified(Struct, frozen=True, rename="camel"):
    """What the checks are about, so that nobody takes a part for the whole."""

    subject: str
    namespaces: tuple[str, ...]
    """Of its pods and ComputeDomains."""
    pods: int
    claiming_pods: int
    compute_domains: int
    nodes: int


class Verification(Struct, frozen=True):
    checks: tuple[CheckResult, ...]
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]
    scope: Verified | None = None
    """Of a preflight, which is about the cluster: none."""

    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        scope = found.pop("scope")
        return {"scope": scope, **found} if scope else found


def verify(cluster: Cluster, scope: Scope, namespace: str = "", subject: str = "") -> Verification:
    """With a namespace, its objects are enough. `subject` is what the reader named: kind/name, or nothing."""
    findings = diagnose(cluster, scope)
    results = tuple(_result(cluster, scope, check, findings, namespace) for check in CHECKS)
    about = subject or (f"namespace {namespace}" if namespace else "all namespaces")
    return Verification(results, tuple(findings), cluster.snapshot.sentences, _verified(cluster, scope, about))


def _verified(cluster: Cluster, scope: Scope, subject: str) -> Verified:
    pods = [pod.key for pod in cluster.pods if scope.everything or pod.key in scope.pods]
    domains = [key for key in cluster.domains if scope.everything or key in scope.domains]
    claiming = {pod.key for pod in cluster.claiming}.intersection(pods)
    nodes = cluster.nvlink_nodes if scope.everything else scope.nodes
    namespaces = tuple(sorted({key.namespace for key in (*pods, *domains)}))
    return Verified(subject, namespaces, len(pods), len(claiming), len(domains), len(nodes))


def preflight(cluster: Cluster) -> Verification:
    """Whether the cluster can run the driver. That it does not run yet is no finding before it is installed."""
    not_served = {one.plural for one in cluster.snapshot.missing if one.not_served}
    installed = COMPUTE_DOMAINS.plural not in not_served
    ids = {id for check in PREFLIGHT for id in check.rules} - (set() if installed else _IF_INSTALLED)
    findings = [finding for finding in diagnose(cluster) if finding.id in ids]
    results = tuple(_result(cluster, EVERYTHING, check, findings) for check in PREFLIGHT)
    return Verification(results, tuple(findings), cluster.snapshot.sentences)


def _result(
    cluster: Cluster, scope: Scope, check: Check, findings: Sequence[Finding], namespace: str = ""
) -> CheckResult:
    found = {finding.severity for finding in findings if finding.id in check.rules}
    count = check.counted(cluster, scope)
    if Severity.ERROR in found:
        verdict = Verdict.FAILED
    elif Severity.WARNING in found:
        verdict = Verdict.WARNING
    elif not (cluster.has(*check.needs, namespace=namespace) and check.known(cluster)):
        verdict = Verdict.UNKNOWN
    else:
        verdict = Verdict.PASSED if count.complete else Verdict.WAITING
    return CheckResult(check.title, verdict, count.text)


def scope_of(cluster: Cluster, namespace: str, kind: str = "", name: str = "") -> Scope:
    """Of everything, a namespace, or an object: a pod, a ComputeDomain, a node, or a workload such as an MPIJob.

    Raises Rejected if there is no such object.
    """
    if not kind:
        return of_namespace(cluster, namespace) if namespace else EVERYTHING
    key = Key(namespace, name)
    if kind.lower() in KINDS:
        return subject_of(cluster, kind.lower(), key).scope
    return of_pods(cluster, _pods_of(cluster, kind, key))


def _pods_of(cluster: Cluster, kind: str, key: Key) -> list[ClusterPod]:
    """Of a workload. Raises Rejected if it has none, or if pods cannot be read."""
    owned = [(owner, pod) for pod in cluster.pods for owner in cluster.owners(pod)]
    wanted = kind.lower()
    found = [
        pod for owner, pod in owned if _is_called(owner, wanted, key.name) and key.namespace in ("", pod.namespace)
    ]
    only_namespace(f"{kind} {key}", [pod.namespace for pod in found])
    if not found:
        check_read(cluster, PODS.plural, f"pods of {kind} {key}", key.namespace)
        kinds = {owner.kind.lower() for owner, _ in owned} | {one.lower() for one in (*PLACES, "LeaderWorkerSet")}
        if not {wanted, wanted.removesuffix("s")} & kinds:
            raise Rejected(unknown_kind(kind, kinds))
        near = nearest(key.name, [owner.name for owner, _ in owned if owner.kind.lower() == wanted])
        raise Rejected(f"there is no pod of {kind} {key}" + (f"; did you mean {near}?" if near else ""))
    return found


_GENERATED = r"(-raycluster-\w+|-[bcdfghjklmnpqrstvwxz2456789]{5})"
"""How the name of a RayCluster ends that KubeRay creates for a RayJob or RayService. Its pods do not name them."""


def _is_called(owner: Owner, kind: str, name: str) -> bool:
    if kind.removesuffix("s") in ("rayjob", "rayservice") and owner.kind == "RayCluster":
        return bool(re.fullmatch(re.escape(name) + _GENERATED, owner.name))
    return kind in (owner.kind.lower(), f"{owner.kind.lower()}s") and owner.name == name
