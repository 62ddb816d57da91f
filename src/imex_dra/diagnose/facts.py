"""What each link of the chain is, in a few words: for one pod, or for all of a ComputeDomain."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain, Readiness
from imex_dra.api.meta import Key
from imex_dra.api.nvlinknode import FabricState, ImexState
from imex_dra.api.nvlinkpartition import MemberState
from imex_dra.api.reasons import at, listed
from imex_dra.api.views import ResourceClaim
from imex_dra.diagnose.cluster import Cluster, domain_uids
from imex_dra.diagnose.pods import ClusterPod
from imex_dra.diagnose.rule import Link
from imex_dra.diagnose.scope import Scope


@dataclass(frozen=True)
class Subject:
    """What is explained, and what belongs to it."""

    name: str
    scope: Scope
    pods: list[ClusterPod] = field(default_factory=list)
    domain: ComputeDomain | None = None
    template: str = ""
    claims: list[ResourceClaim] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    links: tuple[Link, ...] = tuple(Link)


def is_unfinished(cluster: Cluster, subject: Subject, link: Link) -> bool:
    """Whether something is still to come, although nothing is wrong with it."""
    match link:
        case Link.POD:
            return any(pod.gates or pod.waiting for pod in subject.pods)
        case Link.TEMPLATE:
            return not _template_exists(cluster, subject)
        case Link.DOMAIN:
            return subject.domain is not None and subject.domain.status.status is not Readiness.READY
        case Link.CLAIM:
            return any(claim.status.allocation is None for claim in subject.claims)
        case Link.CHANNEL:
            return len(_prepared(cluster, subject)) < len(subject.claims)
    return False


def _pod_fact(cluster: Cluster, subject: Subject) -> str:
    if len(subject.pods) == 1:
        pod = subject.pods[0]
        claims = cluster.channel_claims(pod)
        listing = [c.name for c in pod.containers if claims and claims[0].name in (one.scalar for one in c.listed)]
        uses = f"; containers with the channel: {listed(listing)}" if listing else ""
        causes = [f"; waits until its scheduling gates are removed: {', '.join(pod.gates)}"] if pod.gates else []
        causes += [f"; container {c} waits: {': '.join(filter(None, said))}" for c, *said in pod.waiting]
        what = f"{pod.name} is {pod.phase}{''.join(causes)}"
        return f"{what}{uses}" if claims else f"{what}, and claims no channel"
    phases = Counter(pod.phase for pod in subject.pods)
    counts = ", ".join(f"{count} {phase}" for phase, count in phases.items())
    gated = [f"{pod.name} ({', '.join(pod.gates)})" for pod in subject.pods if pod.gates]
    gates = f"; with scheduling gates: {listed(gated)}" if gated else ""
    starting = waiting_pods(subject.pods)
    waits = f"; a container waits in {listed(starting)}" if starting else ""
    return f"{len(subject.pods)} pods: {counts}{gates}{waits}" if phases else ""


def waiting_pods(pods: Iterable[ClusterPod]) -> list[str]:
    """Pods with a container that does not start, with the kubelet's reason."""
    return [f"{pod.name} ({pod.waiting[0].reason or pod.waiting[0].message})" for pod in pods if pod.waiting]


def _template_fact(cluster: Cluster, subject: Subject) -> str:
    if not subject.template:
        return ""
    return f"{subject.template} " + ("exists" if _template_exists(cluster, subject) else "is not there")


def _template_exists(cluster: Cluster, subject: Subject) -> bool:
    namespace = subject.name.partition(" ")[2].partition("/")[0]
    return Key(namespace, subject.template) in cluster.templates


def _domain_fact(cluster: Cluster, subject: Subject) -> str:
    if subject.domain is None:
        gone = [claim.metadata for claim in subject.claims if domain_uids(claim)]
        known = gone and cluster.has(COMPUTE_DOMAINS.plural, namespace=gone[0].namespace)
        return f"none has the UID that claim {gone[0].name} names" if known else ""
    summary = subject.domain.status.summary
    message = f": {summary.message}" if summary.message else ""
    return f"{subject.domain.metadata.name} is {summary.status or subject.domain.status.status}{message}"


def _claim_fact(_: Cluster, subject: Subject) -> str:
    if len(subject.claims) == 1:
        claim = subject.claims[0]
        where = "".join(f" on {node}" for node in sorted(claim.nodes))
        return f"{claim.metadata.name} is {claim_state(claim)}{where}"
    states = Counter(map(claim_state, subject.claims))
    return f"{len(subject.claims)} claims: " + ", ".join(f"{n} {s}" for s, n in states.items()) if states else ""


def claim_state(claim: ResourceClaim) -> str:
    """As kubectl get resourceclaims shows it."""
    parts = (("allocated", claim.status.allocation), ("reserved", claim.status.reserved_for))
    return ",".join(name for name, there in parts if there) or "pending"


def _partition_fact(cluster: Cluster, subject: Subject) -> str:
    partitions = sorted({cluster.partition_of(node) for node in subject.nodes} - {""})
    facts = []
    for name in partitions:
        found = cluster.partitions.get(name)
        here = [node for node in subject.nodes if node in cluster.members and cluster.partition_of(node) == name]
        members = [cluster.members[node][1] for node in here]
        ready = sum(member.state is MemberState.READY for member in members)
        state = found.status.summary.state.value if found else "not known"
        one = f"{here[0]} is {members[0].state}" if len(members) == 1 else ""
        member = one or f"{ready} of {len(members)} nodes are Ready"
        facts.append(f"{cluster.rack(name)} ({name}) is {state}" + (f"; {member}" if members else ""))
    return "; ".join(facts)


def _fabric_fact(cluster: Cluster, subject: Subject) -> str:
    reports = [cluster.nvlink_nodes[node].status for node in subject.nodes if node in cluster.nvlink_nodes]
    if len(reports) == 1:
        gpus = f", {reports[0].gpu_count} GPUs" if reports[0].gpu_count else ""
        return f"{reports[0].fabric.state} on {subject.nodes[0]}{gpus}"
    fine = sum(report.fabric.state is FabricState.OK for report in reports)
    return f"ok on {fine} of {len(reports)} nodes" if reports else ""


def _daemon_fact(cluster: Cluster, subject: Subject) -> str:
    reports = [cluster.nvlink_nodes[node].status for node in subject.nodes if node in cluster.nvlink_nodes]
    if len(reports) == 1:
        started = reports[0].imex_started_at
        # Of one that is not READY it would be read as the time since when it is not.
        since = f", started {at(started)}" if started and reports[0].imex_state is ImexState.READY else ""
        misses = f"; cannot reach {listed(reports[0].unreachable)}" if reports[0].unreachable else ""
        return f"{reports[0].imex_state} on {subject.nodes[0]}{since}{misses}"
    ready = sum(report.imex_state is ImexState.READY for report in reports)
    return f"READY on {ready} of {len(reports)} nodes" if reports else ""


def _prepared(cluster: Cluster, subject: Subject) -> list[ResourceClaim]:
    reported = {uid for report in cluster.nvlink_nodes.values() for uid in report.status.prepared_claims}
    return [claim for claim in subject.claims if claim.metadata.uid in reported]


def _channel_fact(cluster: Cluster, subject: Subject) -> str:
    allocated = [claim for claim in subject.claims if claim.nodes]
    count = f"{len(_prepared(cluster, subject))} of {len(allocated)} claims prepared" if allocated else ""
    if subject.domain is None:
        return count or ("no claim is allocated here" if subject.nodes and not allocated else "")
    numbers = {
        cluster.rack(name): channel
        for name in sorted({cluster.partition_of(node) for node in subject.nodes} - {""})
        if (channel := cluster.channel(name, subject.domain)) is not None
    }
    channels = [f"channel {number} in {rack}" for rack, number in numbers.items()]
    return "; ".join(filter(None, (", ".join(channels), count)))


FACTS: dict[Link, Callable[[Cluster, Subject], str]] = {
    Link.DRIVER: lambda *_: "",
    Link.POD: _pod_fact,
    Link.TEMPLATE: _template_fact,
    Link.DOMAIN: _domain_fact,
    Link.CLAIM: _claim_fact,
    Link.PARTITION: _partition_fact,
    Link.FABRIC: _fabric_fact,
    Link.DAEMON: _daemon_fact,
    Link.CHANNEL: _channel_fact,
}
"""By link. Empty if there is nothing to see."""
