"""Every refused prepare names a cause that was real while it was decided.

The judge knows the world: links, disks, hardware, daemons, and every version of every object. It does not repeat
the driver's decision; it reads the sentence that a user would read, and asks whether what it says was true at some
time during the call, or as long before it as the node may not have known better. A sentence that it does not know
is a violation, too.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from imex_sandbox.embedded.kinds import Kind
from imex_sandbox.embedded.statuses import Json
from imex_sandbox.embedded.storage import Change, Key
from imex_sandbox.simulation.cluster import SimulatedCluster
from imex_sandbox.simulation.imex import Ctl
from imex_sandbox.simulation.invariants import Violation, read_checkpoint
from imex_sandbox.simulation.kinds import CLAIMS, DOMAINS, PARTITIONS
from imex_sandbox.simulation.kubelet import Refusal
from imex_sandbox.simulation.node import SimulatedNode

_KEPT = 1200.0
"""Seconds for which former versions of objects are kept."""
_SLACK = 30.0
"""Seconds after which a node without any fault knows of a change."""
_UNINFORMED = 900.0
"""The same for a node whose watches have lagged or ended, or whose program has hung or was started lately."""
_HARDWARE = 90.0
"""Seconds between two readings of the hardware."""


class Version(NamedTuple):
    until: float
    """When it was replaced."""
    kind: Kind
    key: Key
    document: Json | None
    """None: the object did not exist."""


class _Case(NamedTuple):
    refusal: Refusal
    node: SimulatedNode
    words: re.Match[str]
    since: float
    """What was true at any time since then may be the cause."""


class Refusals:
    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._versions: deque[Version] = deque()
        self._last: dict[tuple[str, str], float] = {}
        """When a fact about a node was last true, by its name and that of the node."""
        self._first: dict[tuple[str, str], float] = {}
        """Since when it has been true."""
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
            (r"NVLink partition (\S+) assigns no channel .*\(missing: ([^)]*)\)", self._reports_missing),
            (r"NVLink partition (\S+) assigns no channel .*: ([^;:]*); check that", self._lists_outdated),
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
            (r"its status does not list node", self._not_listed),
        )
        cluster.storage.subscribe(self._on_change)

    def _on_change(self, change: Change) -> None:
        if change.kind not in (PARTITIONS, DOMAINS, CLAIMS):
            return
        now = self._cluster.loop.time()
        self._versions.append(Version(now, change.kind, change.key, change.old.document if change.old else None))
        while self._versions and self._versions[0].until < now - _KEPT:
            self._versions.popleft()

    # What is true of a node, noted before and after every fault

    def observe(self) -> None:
        for node in self._cluster.nodes.values():
            self._note("api", node.name, self._has_api_trouble(node))
            self._note("cut", node.name, node.is_cut or self._cluster.server.is_down)
            self._note("disk", node.name, node.disk.is_full or node.disk.errors > 0)
            self._note("fabric", node.name, bool(node.hardware.broken))
            self._note("ctl", node.name, self._has_ctl_trouble(node))
            self._note("uninformed", node.name, self._is_uninformed(node))

    def _note(self, fact: str, node: str, is_true: bool) -> None:
        now, key = self._cluster.loop.time(), (fact, node)
        if is_true:
            self._last[key] = now
            self._first.setdefault(key, now)
        else:
            self._first.pop(key, None)

    def _has_api_trouble(self, node: SimulatedNode) -> bool:
        links = [program.link for program in node.running()]
        return any(link.is_cut or link.failures or link.stragglers or link.latency > 1.0 for link in links)

    def _has_ctl_trouble(self, node: SimulatedNode) -> bool:
        daemon = self._cluster.fabric.daemons.get(node.name)
        return node.ctl_delay > 1.0 or (daemon is not None and daemon.ctl is not Ctl.WORKS)

    def _is_uninformed(self, node: SimulatedNode) -> bool:
        lagging = any(program.hangs or program.link.watch_lag for program in node.programs)
        return lagging or self._has_api_trouble(node)

    def _was(self, fact: str, case: _Case, extra: float = 0.0) -> bool:
        return self._last.get((fact, case.node.name), -1.0) >= case.since - extra

    # The judgment

    def check(self, refusal: Refusal) -> None:
        """Raises Violation."""
        self.observe()
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
        cut_since = self._first.get(("cut", refusal.node))
        told = ("cannot reach the API server", "cannot write what it has prepared")
        if cut_since is not None and cut_since < refusal.began and not any(one in refusal.error for one in told):
            cause = f"{refusal.node} was cut off from the API during the whole call: {refusal.error}"
            raise Violation("wrong reason", cause)

    def _horizon(self, refusal: Refusal) -> float:
        node = self._cluster.nodes[refusal.node]
        started = max((program.started_at for program in node.running()), default=0.0)
        uninformed = max(self._last.get(("uninformed", node.name), -_KEPT), started)
        recent = uninformed > refusal.began - _UNINFORMED / 2
        return refusal.began - (_UNINFORMED if recent else _SLACK)

    def _documents(self, kind: Kind, key: Key, case: _Case) -> Iterator[Json | None]:
        """Every version that the object had since the horizon."""
        now = self._cluster.storage.get(kind, key)
        yield now.document if now else None
        for version in self._versions:
            if version.until >= case.since and (version.kind, version.key) == (kind, key):
                yield version.document

    def _statuses(self, case: _Case) -> Iterator[Json]:
        """Of the partition that the sentence names first."""
        for document in self._documents(PARTITIONS, Key("", case.words[1].rstrip(":;,")), case):
            yield (document or {}).get("status", {})

    # What each sentence says

    def _api_failed(self, case: _Case) -> bool:
        return self._was("api", case)

    def _disk_failed(self, case: _Case) -> bool:
        return self._was("disk", case)

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
        documents = self._documents(PARTITIONS, Key("", name), case)
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
        versions = self._documents(PARTITIONS, Key("", case.words[1]), case)
        return self._was("uninformed", case) or self._program_started(case) or None in list(versions)

    def _suspended(self, case: _Case) -> bool:
        return any(members.get(case.node.name) == "Suspended" for members in self._members(case))

    def _holds_foreign_channels(self, case: _Case) -> bool:
        return any(claim["partition"] != case.words[1] for claim in self._prepared(case)) or self._no_member(case)

    def _outdated(self, case: _Case) -> bool:
        return self._cluster.tampered_at.get(case.words[1], -_KEPT) >= case.since - _UNINFORMED

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
        return list(((read_checkpoint(path.read_bytes()) if path.exists() else None) or {}).values())

    def _peers_missing(self, case: _Case) -> bool:
        fabric, now = self._cluster.fabric, self._cluster.loop.time()
        named = set(re.split(r", | and \d+ more", case.words[1])) - {""}
        return all(
            not fabric.connected(case.node.name, peer, now) or fabric.changed_at >= case.since for peer in named
        )

    def _not_listed(self, case: _Case) -> bool:
        keys = [
            key
            for key, one in self._cluster.storage.all(DOMAINS)
            if one.document["metadata"]["uid"] == case.refusal.domain
        ]
        return not keys or any(
            case.node.name not in {node["name"] for node in (d or {}).get("status", {}).get("nodes", ())}
            for d in self._documents(DOMAINS, keys[0], case)
        )
