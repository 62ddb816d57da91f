"""The chain from a pod to the fabric: what each link is, and which one is broken first.

pod → template → ComputeDomain → claim → partition → fabric → daemon → channel. Each link needs those before it:
the fabric comes before the daemon, because nvidia-imex cannot be READY without it. A link is broken if a rule that
concerns it has found an error; so `imex explain` never says anything else than `imex verify`.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.meta import Key, Resource, key_of
from imex_dra.api.views import NODES, PODS, RESOURCE_CLAIMS
from imex_dra.base.errors import Rejected
from imex_dra.diagnose.cluster import Cluster, domain_uids, is_channel_claim
from imex_dra.diagnose.facts import FACTS, Subject, is_unfinished
from imex_dra.diagnose.rule import Finding, Link
from imex_dra.diagnose.rules import diagnose
from imex_dra.diagnose.scheduling import PartitionFit, fits
from imex_dra.diagnose.scope import of_domain, of_nodes, of_pods
from imex_dra.lint.findings import Severity
from imex_dra.lint.manifests import nearest

KINDS: dict[str, Resource[Any]] = {
    "pod": PODS, "pods": PODS, "po": PODS,
    "claim": RESOURCE_CLAIMS, "claims": RESOURCE_CLAIMS,
    "resourceclaim": RESOURCE_CLAIMS, "resourceclaims": RESOURCE_CLAIMS,
    "computedomain": COMPUTE_DOMAINS, "computedomains": COMPUTE_DOMAINS,
    "node": NODES, "nodes": NODES, "no": NODES,
}  # fmt: skip
"""As kubectl names them."""
NAMES = ("pod", "claim", "computedomain", "node")


def unknown_kind(word: str, others: Iterable[str] = ()) -> str:
    """`others` are kinds of workloads."""
    names = [*NAMES, *sorted({*others} - {*NAMES})]
    near = nearest(word.lower(), names)
    hint = f"; did you mean {near}?" if near else ""
    return f"unknown kind {word}; known kinds: {', '.join(names)}{hint}"


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"
    WAITING = "waiting"
    """There is nothing to see yet, because of a link before it."""


class LinkReport(Struct, frozen=True):
    link: Link
    state: State
    fact: str


class Explanation(Struct, frozen=True, rename="camel"):
    subject: str
    links: tuple[LinkReport, ...]
    findings: tuple[Finding, ...]
    """The one that breaks the first broken link comes first."""
    partitions: tuple[PartitionFit, ...] = ()
    """For a pod that waits for a node."""
    missing: tuple[str, ...] = ()

    @property
    def broken(self) -> LinkReport | None:
        return next((link for link in self.links if link.state is State.BROKEN), None)

    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(self)
        return {**found, "brokenLink": str(self.broken.link) if self.broken else ""}


def explain(cluster: Cluster, kind: str, key: Key) -> Explanation:
    """`kind` is a key of KINDS. Raises Rejected if there is no such object, or if it cannot be read."""
    return _explanation(cluster, subject_of(cluster, kind, key))


def subject_of(cluster: Cluster, kind: str, key: Key) -> Subject:
    """Without a namespace: in the only one that has the name. Raises Rejected."""
    resource = KINDS[kind]
    if resource is NODES:
        return _node(cluster, key.name)
    objects: Mapping[Key, object]
    subject: Callable[[Cluster, Key], Subject]
    if resource is PODS:
        objects, subject = cluster.pods_by_key, _pod
    elif resource is RESOURCE_CLAIMS:
        objects, subject = cluster.claims, _claim
    else:
        objects, subject = cluster.domains, _domain
    what = f"{resource.kind} {key}"
    if not key.namespace:
        key = Key(only_namespace(what, [one.namespace for one in objects if one.name == key.name]), key.name)
    if key not in objects:
        check_read(cluster, resource.plural, what, key.namespace)
        raise Rejected(_unknown(resource.kind, key, objects))
    return subject(cluster, key)


def only_namespace(what: str, namespaces: Iterable[str]) -> str:
    """Empty if there is none. Raises Rejected if there are several."""
    found = sorted(set(namespaces))
    if len(found) > 1:
        raise Rejected(f"{what} is in the namespaces {', '.join(found)}: choose one with -n")
    return found[0] if found else ""


def check_read(cluster: Cluster, plural: str, what: str, namespace: str = "") -> None:
    """Raises Rejected if objects of the kind could not be read: then there may be one of this name."""
    if why := cluster.snapshot.why_missing(plural, namespace):
        raise Rejected(f"{what} cannot be looked up: {why}")


def _pod(cluster: Cluster, key: Key) -> Subject:
    pod = cluster.pods_by_key[key]
    channel = cluster.channel_claims(pod)
    domains = [found for claim in channel if (found := cluster.domain_of(pod, claim))]
    return Subject(
        f"Pod {key}",
        of_pods(cluster, [pod]),
        [pod],
        domains[0] if domains else None,
        channel[0].template.text if channel else "",
        [made for claim in channel if (made := cluster.claim_of(pod, claim))],
        [pod.node] if pod.node else [],
        # Without a claim of a channel only the pod can be wrong.
        tuple(Link) if channel else (Link.DRIVER, Link.POD),
    )


def _claim(cluster: Cluster, key: Key) -> Subject:
    claim = cluster.claims[key]
    if not is_channel_claim(claim):
        raise Rejected(f"ResourceClaim {key} claims no IMEX channel")
    users = {*claim.pods, *(owner.name for owner in claim.metadata.owner_references if owner.kind == "Pod")}
    keys = [Key(key.namespace, name) for name in sorted(users)]
    pods = [cluster.pods_by_key[one] for one in keys if one in cluster.pods_by_key]
    domain = next((cluster.domains_by_uid.get(uid) for uid in domain_uids(claim)), None)
    nodes = sorted(claim.nodes)
    scope = of_pods(cluster, pods, [key_of(domain)] if domain else [])
    template = domain.template_name if domain else ""
    return Subject(f"ResourceClaim {key}", scope, pods, domain, template, [claim], nodes)


def _domain(cluster: Cluster, key: Key) -> Subject:
    domain = cluster.domains[key]
    uid = domain.metadata.uid
    claims = [claim for claim in cluster.claims.values() if uid in domain_uids(claim)]
    nodes = sorted({node for claim in claims for node in claim.nodes})
    pods = cluster.pods_of_domain.get(uid, [])
    return Subject(
        f"ComputeDomain {key}", of_domain(cluster, key), pods, domain, domain.template_name, claims, nodes
    )


def _node(cluster: Cluster, name: str) -> Subject:
    if name not in {*cluster.nodes, *cluster.nvlink_nodes}:
        check_read(cluster, NODES.plural, f"Node {name}")
        raise Rejected(_unknown("Node", Key("", name), [Key("", one) for one in cluster.nodes]))
    claims = cluster.claims_on.get(name, [])
    links = (Link.DRIVER, Link.PARTITION, Link.FABRIC, Link.DAEMON, Link.CHANNEL)
    return Subject(f"Node {name}", of_nodes(cluster, [name]), claims=claims, nodes=[name], links=links)


def _unknown(kind: str, key: Key, known: Iterable[Key]) -> str:
    names = [one.name for one in known if key.namespace in ("", one.namespace)]
    elsewhere = sorted(one.namespace for one in known if one.name == key.name)
    hint = f"; namespace {elsewhere[0]} has one" if elsewhere else ""
    if not hint and (near := nearest(key.name, names)):
        hint = f"; did you mean {near}?"
    return f"there is no {kind} {key}{hint}"


def _explanation(cluster: Cluster, subject: Subject) -> Explanation:
    found = diagnose(cluster, subject.scope)

    def order(finding: Finding) -> tuple[bool, int, bool]:
        # A finding on the own node explains more than one on a node of another pod.
        elsewhere = not set(finding.nodes) & set(subject.nodes)
        return finding.severity is not Severity.ERROR, list(Link).index(finding.link), elsewhere

    findings = sorted(found, key=order)
    links = []
    for link in subject.links:
        own = {finding.severity for finding in findings if finding.link is link}
        fact = FACTS[link](cluster, subject)
        if Severity.ERROR in own:
            state = State.BROKEN
        elif Severity.WARNING in own:
            state = State.WARNING
        else:
            state = State.WAITING if not fact or is_unfinished(cluster, subject, link) else State.OK
        if fact or own or link is not Link.DRIVER:
            links.append(LinkReport(link, state, fact))
    # A pod without its template is not scheduled wherever it fits.
    schedulable = not any(link.link is Link.TEMPLATE and link.state is State.BROKEN for link in links)
    waiting = [pod for pod in subject.pods if schedulable and not (pod.node or pod.ended or pod.gates)]
    return Explanation(
        subject.name,
        tuple(links),
        tuple(finding for finding in findings if finding.link in subject.links),
        tuple(fits(cluster, waiting[0])) if waiting and cluster.has("nodes", "resourceslices") else (),
        cluster.snapshot.sentences,
    )
