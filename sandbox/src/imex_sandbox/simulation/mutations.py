"""Safety conditions of the driver, broken one at a time: the simulation must notice them.

A mutation replaces one function or method of the driver by one that lacks a check. It says nothing about how the
check is made, so it must be kept up to date with the code that it patches.

These checks have no mutation, because another one covers them by design, and breaking one alone does no harm:

- A node that another partition lists is not admitted (`Admission.other_partitions`). Its IMEX daemon must
  have left that one as well, and a daemon runs in one partition at a time.
- A channel number that another ComputeDomain holds on the same node is not prepared
  (`PreparedClaims._check_channel_free`). A node that holds such a number is not admitted, and no number is reused
  while a node holds it.
"""

import importlib
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pool
from typing import Any, NamedTuple

from msgspec import structs

from imex_dra.api.computedomain import CHANNEL_ASSIGNED
from imex_dra.api.meta import is_deleting, key_of
from imex_dra.api.nodereasons import fabric_broken
from imex_dra.api.nvlinkpartition import MemberState
from imex_dra.api.partitionreasons import channels_exhausted, not_a_member, partition_not_received
from imex_dra.api.reasons import Explanation, Reason
from imex_dra.base.errors import NotYet
from imex_dra.kube.client import JSON_PATCH
from imex_dra.kube.conditions import find_condition
from imex_dra.kube.patch import json_patch
from imex_dra.node.checkpoint import Checkpoint
from imex_dra.node.grant import Obstacle, grant_or_obstacle
from imex_sandbox.simulation.run import Outcome, Story, simulate


class Mutation(NamedTuple):
    name: str
    module: str
    attribute: str
    """Dotted: a function, or a method of a class."""
    change: Callable[[Any], Any]
    """From the original to the broken one."""

    def apply(self) -> None:
        """For the rest of the process."""
        owner, name = self.target()
        setattr(owner, name, self.change(getattr(owner, name)))

    def target(self) -> tuple[Any, str]:
        """The module or class, and the name in it."""
        owner: Any = importlib.import_module(f"imex_dra.{self.module}")
        *path, name = self.attribute.split(".")
        for part in path:
            owner = getattr(owner, part)
        return owner, name


class Found(NamedTuple):
    seeds: int
    """How many were run until one failed, in the order of the seeds."""
    seed: int
    """The one that failed."""
    seen_as: str


def mutation_named(name: str) -> Mutation:
    return next(mutation for mutation in _ALL if mutation.name == name)


def find(mutation: Mutation, stories: list[Story], jobs: int) -> Found | None:
    with Pool(jobs, mutation.apply) as pool:
        for number, outcome in enumerate(pool.imap(simulate, stories), start=1):
            if outcome.problem:
                return Found(number, outcome.story.seed, seen_as(outcome))
    return None


def seen_as(outcome: Outcome) -> str:
    return outcome.name if outcome.name != "at rest" else outcome.problem.partition(": ")[2][:120]


def _always(value: Any) -> Callable[[Any], Any]:
    return lambda original: lambda *args, **options: value


def _acknowledge_without_fence(original: Any) -> Any:
    def raise_fence(self: Any, partition: str, epoch: int) -> Any:
        return self.read().with_fence(partition, epoch)

    return raise_fence


def _write_without_version(original: Any) -> Any:
    async def patch_changes(client: Any, resource: Any, before: Any, after: Any, *, subresource: str = "") -> Any:
        operations, key = json_patch(before, after), key_of(before)
        if not operations:
            return before
        return await client.patch(resource, key, operations, subresource=subresource, content_type=JSON_PATCH)

    return patch_changes


def _leave_when_not_ready(original: Any) -> Any:
    def is_gone(self: Any, node: str, nvlink_node: Any) -> bool:
        return node in self.inputs.liveness.not_ready_nodes or original(self, node, nvlink_node)

    return is_gone


def _without_known_counters(original: Any) -> Any:
    async def reconcile(self: Any, name: Any) -> Any:
        self.known.clear()
        return await original(self, name)

    return reconcile


def _ignore_suspension(original: Any) -> Any:
    def node_obstacle(snapshot: Any) -> Any:
        member = snapshot.member
        if member is None or member.state is not MemberState.SUSPENDED:
            return original(snapshot)
        return None

    return node_obstacle


def _list_while_recovering(original: Any) -> Any:
    def member_list_of(partition: Any, node: str) -> Any:
        status = structs.replace(partition.status, pending_reports=())
        return original(structs.replace(partition, status=status), node)

    return member_list_of


def _left_at_once(original: Any) -> Any:
    return lambda member, members, nvlink_nodes: member.state is MemberState.LEAVING


def _ignore_disk_errors(original: Any) -> Any:
    def save(self: Any, checkpoint: Any) -> None:
        with suppress(OSError):
            original(self, checkpoint)

    return save


def _release_by_cache(original: Any) -> Any:
    async def is_released(self: Any, reference: Any) -> bool:
        domain = self._caches.compute_domain(reference.uid)
        return domain is None or is_deleting(domain)

    return is_released


def _tell_name_instead_of_uid(original: Any) -> Any:
    def edits(self: Any, claim: Any) -> Any:
        return original(self, structs.replace(claim, domain_uid=claim.domain_name))

    return edits


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("a prepare ignores the fence", "node.prepared", "PreparedClaims._check_fence", _always(None)),
    Mutation(
        "an epoch is acknowledged without raising the fence",
        "node.prepared",
        "PreparedClaims.raise_fence",
        _acknowledge_without_fence,
    ),
    Mutation(
        "a channel is reused without all acknowledgments",
        "controller.epochs",
        "NodeReports.blocking",
        _always([]),
    ),
    Mutation(
        "a channel is reused although a node holds it", "controller.epochs", "NodeReports.holders", _always([])
    ),
    Mutation(
        "a node with channels of others is admitted",
        "controller.admission",
        "Admission._foreign_channels",
        _always([]),
    ),
    Mutation(
        "a member whose Node is not Ready leaves",
        "controller.membership",
        "_Update._is_gone",
        _leave_when_not_ready,
    ),
    Mutation(
        "a restored partition assigns before all have reported",
        "controller.partitionplan",
        "still_pending",
        _always(()),
    ),
    Mutation(
        "a prepare succeeds although its checkpoint cannot be written",
        "node.prepared",
        "CheckpointFile.save",
        _ignore_disk_errors,
    ),
    Mutation(
        "a lost checkpoint is not rebuilt",
        "node.prepared",
        "PreparedClaims._checkpoint_of_specs",
        lambda original: lambda self: Checkpoint(),
    ),
    Mutation("a restored partition is not noticed", "controller.recovery", "_is_stale", _always(False)),
    Mutation(
        "a lost partition does not ask nodes and ComputeDomains for its channels",
        "controller.partitionplan",
        "merge_evidence",
        lambda original: lambda partition, entries, *evidence, **options: entries,
    ),
    Mutation(
        "a channel that is not assigned yet is reported as exhaustion",
        "node.grant",
        "no_channel_assigned",
        lambda original: lambda *, domain, partition: channels_exhausted(partition=partition, count=7),
    ),
    Mutation(
        "an API server that does not answer is reported as a broken fabric",
        "node.apireads",
        "api_unreachable",
        lambda original: lambda *, node, claim, cause: fabric_broken(node=node, cause=cause),
    ),
    Mutation("the sweep ignores the kubelet's checkpoint", "node.sweep", "_kubelet_may_use", _always(False)),
    Mutation("held channels are not reported", "node.nodestatus", "_live_channels", _always(())),
    Mutation(
        "a pod is told the name of its ComputeDomain as its UID",
        "node.prepared",
        "PreparedClaims._edits",
        _tell_name_instead_of_uid,
    ),
)
"""The simulation finds each of them; docs/simulation.md says within how many seeds."""

UNNOTICED: tuple[Mutation, ...] = (
    Mutation(
        "a partition is written without its resourceVersion",
        "controller.nvlinkpartitions",
        "patch_changes",
        _write_without_version,
    ),
    Mutation(
        "a channel is released while pods hold claims",
        "controller.releases",
        "ReleaseCheck._is_released",
        _release_by_cache,
    ),
    Mutation(
        "the leader forgets what it wrote",
        "controller.nvlinkpartitions",
        "NVLinkPartitionReconciler.reconcile",
        _without_known_counters,
    ),
    Mutation("a suspended node gets channels", "node.grant", "node_obstacle", _ignore_suspension),
    Mutation(
        "daemons get the member list of a recovering partition",
        "node.state",
        "member_list_of",
        _list_while_recovering,
    ),
    Mutation(
        "a prepare is committed after its unprepare",
        "node.checkpoint",
        "Checkpoint.unprepared_since",
        _always(False),
    ),
    Mutation("an index is free as soon as its member leaves", "controller.membership", "_has_left", _left_at_once),
)
"""Not found so far: the faults that each of them takes have not coincided in a seed. Unit tests cover them."""


def _cause_of_all_partitions(original: Any) -> Any:
    """Commit 2749113 fixed it."""

    def with_controllers_cause(explanation: Any, domain: Any, snapshot: Any) -> Any:
        condition = find_condition(domain.status.conditions, CHANNEL_ASSIGNED) if domain else None
        found = original(explanation, None, snapshot)
        if found != explanation or explanation.reason is not Reason.NO_CHANNEL_ASSIGNED or condition is None:
            return found
        if condition.status != "False" or condition.reason == Reason.NO_CHANNEL_ASSIGNED:
            return found
        if snapshot.partition_id not in condition.message:
            return found
        cause, _, next_step = condition.message.partition("; ")
        return Explanation(explanation.reason, cause, next_step)

    return with_controllers_cause


def _not_received_is_no_member(original: Any) -> Any:
    """Commit 9a1a51f fixed it. Now the read at the deadline (136c0cb) hides it, so that is not made either."""

    async def decide_at_deadline(
        snapshot: Any, request: Any, checkpoint: Any, live: Any, domain: Any, deadline: Any
    ) -> Any:
        node, partition = snapshot.node, snapshot.partition_id
        verdict = grant_or_obstacle(snapshot, request, checkpoint.fence(partition))
        not_received = partition_not_received(node=node, partition=partition)
        if isinstance(verdict, Obstacle) and verdict.explanation == not_received:
            raise not_a_member(node=node, partition=partition).error(NotYet, waited=deadline.elapsed())
        return await original(snapshot, request, checkpoint, live, domain, deadline)

    return decide_at_deadline


def _one_old_report_refutes_all(original: Any) -> Any:
    def highest_possible(status: Any, known: Any, witnesses: Any) -> Any:
        highest = original(status, known, witnesses)
        is_new = known is None or known.epoch < status.epoch or known.generation < status.generation
        if status.epoch and is_new and not status.pending_reports and witnesses:
            lowest = min(witness.acknowledged_epoch for witness in witnesses)
            return highest._replace(epoch=status.epoch + 1) if lowest <= status.epoch else highest
        return highest

    return highest_possible


REGRESSIONS: tuple[Mutation, ...] = (
    Mutation(
        "members that agree are refuted by one old report",
        "controller.plausibility",
        "_highest_possible",
        _one_old_report_refutes_all,
    ),
    Mutation(
        "a prepare error has the causes of all partitions",
        "node.prepare",
        "with_controllers_cause",
        _cause_of_all_partitions,
    ),
    Mutation(
        "a node without its partition says that it is not a member",
        "node.prepare",
        "_decide_at_deadline",
        _not_received_is_no_member,
    ),
)
"""Bugs that the simulation has found, put back. `tests/sandbox/simulation/test_seeds.py` has a seed for each."""

_ALL = (*MUTATIONS, *UNNOTICED, *REGRESSIONS)
NAMES = [mutation.name for mutation in _ALL]
