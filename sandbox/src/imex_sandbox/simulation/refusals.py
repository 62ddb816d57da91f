"""Every refused prepare names a cause that was real while it was decided.

The check knows links, disks, hardware, daemons, and every version of every object (`facts`). It does not repeat
the driver's decision: it reads the sentence that a user would read, and looks whether it was true at some time
during the call, or as long before it as the node could not know better. A sentence that it does not know is a
violation, too.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from imex_sandbox.embedded.statuses import Json
from imex_sandbox.embedded.storage import Key
from imex_sandbox.simulation.cluster import SimulatedCluster
from imex_sandbox.simulation.facts import KEPT, Facts
from imex_sandbox.simulation.invariants import Violation, read_checkpoint
from imex_sandbox.simulation.kinds import CLAIMS, DOMAINS, PARTITIONS
from imex_sandbox.simulation.kubelet import Refusal
from imex_sandbox.simulation.node import SimulatedNode

_SLACK = 30.0
"""Seconds after which a node without any fault knows of a change."""
_UNINFORMED = 900.0
"""The same for a node whose watches have lagged or ended, or whose program has hung or was started lately."""
_HARDWARE = 90.0
"""Seconds between two readings of the hardware."""


class _Case(NamedTuple):
    refusal: Refusal
    node: SimulatedNode
    words: re.Match[str]
    since: float
    """What was true at any time since then may be the cause."""


class Refusals:
    def __init__(self, cluster: SimulatedCluster, facts: Facts) -> None:
        self._cluster = cluster
        self._facts = facts
        self._sentences: tuple[tuple[str, Callable[[_Case], bool]], ...] = (
            (r"cannot reach the API server", self._api_failed),
            (r"cannot write what it has prepared", self._disk_failed),
            (r"the NVLink fabric is broken", self._fabric_broken),
            (r"the NVLink fabric is not up", self._program_started),
            (r"the IMEX daemon of node \S+ is \w+, not READY", self._daemon_not_ready),
            (
                r"runs with index (-?\d+), but the node's index in NVLink partition (\S+) is (\d+)",
                self._other_index,
            ),
            (r"ComputeDomain \S+ has no channel in NVLink partition (\S+) yet", self._unassigned),
            (r"NVLink partition (\S+) has no free channel", self._exhausted),
            (r"NVLink partition (\S+) assigns no channel [^;]*\(missing: ([^)]*)\)", self._reports_missing),
            (
                r"NVLink partition (\S+) assigns no channel [^;]* apply the current member list",
                self._lists_outdated,
            ),
            (r"is not a member of NVLink partition (\S+)", self._no_member),
            (r"has not received NVLinkPartition (\S+) from the API server", self._not_received),
            (r"is suspended in NVLink partition (\S+):", self._suspended),
            (r"cannot join NVLink partition (\S+) yet: it holds channels", self._holds_foreign_channels),
            (r"NVLinkPartition (\S+) is at epoch (\d+), but .* acknowledged epoch (\d+)", self._outdated),
            (r"claim \S+ no longer exists", self._claim_gone),
            (r"claim \S+ has UID", self._claim_gone),
            (r"claim \S+ cannot be prepared on node", self._claim_gone),
            (r"but namespace \S+ has no ComputeDomain with this UID", self._domain_gone),
            (r"ComputeDomain \S+ is being deleted", self._domain_gone),
            (r"was unprepared while it was being prepared", self._unprepared),
            (r"is still held on node \S+ by claim", self._channel_held),
            (r"is not connected to other nodes with claims: ([^;]*)", self._peers_missing),
            (r"has not reported yet to which nodes its IMEX daemon is connected", self._connections_unknown),
            (r"its status does not list node \S+ in NVLink partition (\S+) yet", self._not_listed),
        )

    def _was(self, fact: str, case: _Case, extra: float = 0.0) -> bool:
        return self._facts.was(fact, case.node.name, case.since - extra)

    def check(self, refusal: Refusal) -> None:
        """Raises Violation."""
        self._facts.observe()
        sentence = refusal.error
        for pattern, is_true in self._sentences:
            words = re.search(pattern, sentence)
            if words is None:
                continue
            case = _Case(refusal, self._cluster.nodes[refusal.node], words, self._horizon(refusal))
            if not is_true(case):
                raise Violation("wrong reason", f"{refusal.node}, claim {refusal.claim}: {sentence}")
            self._check_obvious_causes(refusal)
            return
        raise Violation("unknown reason", f"{refusal.node}, claim {refusal.claim}: {sentence}")

    def _check_obvious_causes(self, refusal: Refusal) -> None:
        """What has prevented every prepare for the whole call must be what the sentence says."""
        told = ("cannot reach the API server", "cannot write what it has prepared")
        is_cut = self._facts.has_been("cut", refusal.node, refusal.began)
        if is_cut and not any(one in refusal.error for one in told):
            cause = f"{refusal.node} was cut off from the API during the whole call: {refusal.error}"
            raise Violation("wrong reason", cause)

    def _horizon(self, refusal: Refusal) -> float:
        node = self._cluster.nodes[refusal.node]
        started = max((program.started_at for program in node.running()), default=0.0)
        uninformed = max(self._facts.last("uninformed", node.name), started)
        recent = uninformed > refusal.began - _UNINFORMED / 2
        return refusal.began - (_UNINFORMED if recent else _SLACK)

    def _statuses(self, case: _Case) -> Iterator[Json]:
        """Of the partition that the sentence names first. It must be that of the node."""
        hardware = case.node.hardware
        if hardware.partition != case.words[1].rstrip(":;,") and hardware.moved_at < case.since:
            return
        for document in self._facts.documents(PARTITIONS, Key("", case.words[1].rstrip(":;,")), case.since):
            yield (document or {}).get("status", {})

    # What each sentence says

    def _api_failed(self, case: _Case) -> bool:
        """During the call. A program that hangs does not see the answers either."""
        name, began = case.node.name, case.refusal.began
        return self._facts.was("api", name, began) or self._facts.was("hang", name, began)

    def _disk_failed(self, case: _Case) -> bool:
        return self._facts.was("disk", case.node.name, case.refusal.began)

    def _fabric_broken(self, case: _Case) -> bool:
        return self._was("fabric", case, _HARDWARE)

    def _program_started(self, case: _Case) -> bool:
        return any(program.started_at >= case.since for program in case.node.running())

    def _daemon_not_ready(self, case: _Case) -> bool:
        daemon = self._cluster.fabric.daemons.get(case.node.name)
        is_slow = self._was("ctl", case, _SLACK) or self._program_started(case)
        is_ready = daemon is not None and daemon.is_ready(self._cluster.loop.time())
        return is_slow or not is_ready or (daemon is not None and daemon.unready_until >= case.since)

    def _other_index(self, case: _Case) -> bool:
        name, running = case.words[2], int(case.words[1])
        documents = self._facts.documents(PARTITIONS, Key("", name), case.since)
        indexes = {
            m["index"]
            for d in documents
            for m in (d or {}).get("status", {}).get("members", ())
            if m["node"] == case.node.name
        }
        daemon = self._cluster.fabric.daemons.get(case.node.name)
        applied = daemon.applied if daemon else None
        return int(case.words[3]) in indexes and (
            applied is None or applied.own_index == running or daemon is None or daemon.unready_until >= case.since
        )

    def _unassigned(self, case: _Case) -> bool:
        uid = case.refusal.domain
        return any(
            not any(
                e["state"] == "Assigned" and e["computeDomain"].get("uid") == uid for e in s.get("channels", ())
            )
            for s in self._statuses(case)
        )

    def _exhausted(self, case: _Case) -> bool:
        count = case.node.hardware.channel_count - 1
        return any(len(status.get("channels", ())) >= count for status in self._statuses(case))

    def _reports_missing(self, case: _Case) -> bool:
        named = set(re.split(r", | and \d+ more", case.words[2])) - {""}
        return any(named <= set(status.get("pendingReports", ())) for status in self._statuses(case))

    def _lists_outdated(self, case: _Case) -> bool:
        return any(status.get("requiredGeneration") for status in self._statuses(case))

    def _members(self, case: _Case) -> Iterator[dict[str, str]]:
        """By node: the state."""
        for status in self._statuses(case):
            yield {member["node"]: member["state"] for member in status.get("members", ())}

    def _no_member(self, case: _Case) -> bool:
        return any(members.get(case.node.name, "Leaving") == "Leaving" for members in self._members(case))

    def _not_received(self, case: _Case) -> bool:
        versions = self._facts.documents(PARTITIONS, Key("", case.words[1]), case.since)
        return self._was("uninformed", case) or self._program_started(case) or None in list(versions)

    def _suspended(self, case: _Case) -> bool:
        return any(members.get(case.node.name) == "Suspended" for members in self._members(case))

    def _holds_foreign_channels(self, case: _Case) -> bool:
        return any(claim["partition"] != case.words[1] for claim in self._prepared(case)) or self._no_member(case)

    def _outdated(self, case: _Case) -> bool:
        return self._cluster.tampered_at.get(case.words[1], -KEPT) >= case.since - _UNINFORMED

    def _claim_gone(self, case: _Case) -> bool:
        for _, stored in self._cluster.storage.all(CLAIMS):
            if stored.document["metadata"]["uid"] == case.refusal.claim:
                results = stored.document.get("status", {}).get("allocation", {}).get("devices", {}).get("results")
                return not results or all(result["pool"] != case.node.name for result in results)
        return True

    def _domain_gone(self, case: _Case) -> bool:
        for _, stored in self._cluster.storage.all(DOMAINS):
            if stored.document["metadata"]["uid"] == case.refusal.domain:
                return bool(stored.document["metadata"].get("deletionTimestamp"))
        return True

    def _unprepared(self, case: _Case) -> bool:
        unprepared_at = self._cluster.kubelets[case.node.name].unprepared_at.get(case.refusal.claim, -1.0)
        return unprepared_at >= case.refusal.began

    def _channel_held(self, case: _Case) -> bool:
        return any(claim["domainUid"] != case.refusal.domain for claim in self._prepared(case))

    def _prepared(self, case: _Case) -> list[Json]:
        path = case.node.checkpoint
        claims = read_checkpoint(path.read_bytes()) if path.exists() else None
        return list((claims or {}).values())

    def _peers_missing(self, case: _Case) -> bool:
        fabric, now = self._cluster.fabric, self._cluster.loop.time()
        named = set(re.split(r", | and \d+ more", case.words[1])) - {""}
        return all(
            not fabric.connected(case.node.name, peer, now) or fabric.changed_at >= case.since for peer in named
        )

    def _connections_unknown(self, case: _Case) -> bool:
        return self._was("ctl", case, _SLACK) or self._program_started(case) or self._daemon_not_ready(case)

    def _not_listed(self, case: _Case) -> bool:
        keys = [
            key
            for key, one in self._cluster.storage.all(DOMAINS)
            if one.document["metadata"]["uid"] == case.refusal.domain
        ]
        return not keys or any(
            (case.node.name, case.words[1])
            not in {(node["name"], node["cliqueID"]) for node in (d or {}).get("status", {}).get("nodes", ())}
            for d in self._facts.documents(DOMAINS, keys[0], case.since)
        )
