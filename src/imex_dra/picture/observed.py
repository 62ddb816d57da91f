"""From API objects to a scene. Pure: what the watches show goes in, racks and their holders come out.

A rack is an NVLink partition. A node whose partition nobody knows yet stands with those that are named like it, so
that racks don't jump while a cluster starts.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from imex_dra.api.computedomain import ComputeDomain
from imex_dra.api.meta import Key, key_of
from imex_dra.api.names import CLIQUE_LABEL
from imex_dra.api.nvlinknode import NVLinkNode
from imex_dra.api.nvlinkpartition import ChannelState, NVLinkPartition
from imex_dra.api.views import Node, Pod, ResourceClaim, ResourceSlice
from imex_dra.controller.observed import claim_nodes, domain_uids
from imex_dra.picture.scene import Domain, Holding, Place, Rack, Scene, Tally, Tray

PRODUCT_LABEL = "nvidia.com/gpu.product"
RACK_LABEL = "sandbox.imex-dra.io/rack"
"""On simulated nodes only."""
_PHASES = ("Running", "Pending", "Succeeded", "Failed", "Unknown")
_CLAIM_STATES = ("reserved", "allocated", "pending")


class Observed(Struct, frozen=True):
    nodes: Sequence[Node] = ()
    cards: Sequence[NVLinkNode] = ()
    partitions: Sequence[NVLinkPartition] = ()
    slices: Sequence[ResourceSlice] = ()
    claims: Sequence[ResourceClaim] = ()
    domains: Sequence[ComputeDomain] = ()
    pods: Sequence[Pod] = ()


def scene(observed: Observed, letters: Mapping[str, str]) -> Scene:
    """`letters` by ComputeDomain UID; one without a letter is not shown."""
    grouped = grouping(observed)
    lookups = _Lookups(observed, letters)
    racks = tuple(lookups.rack(name, nodes) for name, nodes in grouped.items())
    return Scene(racks, lookups.domains(grouped), tally(observed))


def grouping(observed: Observed) -> dict[str, list[Node]]:
    """The nodes of each rack, both in the order in which people count."""
    nodes = sorted(observed.nodes, key=lambda node: natural(node.metadata.name))
    partitions = {node.metadata.name: node.metadata.labels.get(CLIQUE_LABEL, "") for node in nodes}
    partitions |= {card.metadata.name: card.status.partition for card in observed.cards if card.status.partition}
    siblings: dict[str, set[str]] = {}
    for node in nodes:
        siblings.setdefault(_alike(node), set()).update({partitions[node.metadata.name]} - {""})
    groups: dict[str, list[Node]] = {}
    for node in nodes:
        place = partitions[node.metadata.name] or _only(siblings[_alike(node)]) or _alike(node)
        groups.setdefault(place, []).append(node)
    return _named(groups)


def _only(found: set[str]) -> str:
    return next(iter(found)) if len(found) == 1 else ""


def _named(groups: Mapping[str, list[Node]]) -> dict[str, list[Node]]:
    """By what its nodes' names have in common, and by the clique where that is not enough."""
    alike = {place: _only({_alike(node) for node in nodes}) or place[:8] for place, nodes in groups.items()}
    shared = Counter(alike.values())
    cliques = {place: place.rpartition(".")[2] for place in groups}
    names = {place: name if shared[name] == 1 else f"{name}.{cliques[place]}" for place, name in alike.items()}
    return {names[place]: nodes for place, nodes in groups.items()}


def _alike(node: Node) -> str:
    return node.metadata.labels.get(RACK_LABEL) or stem(node.metadata.name)


def stem(node: str) -> str:
    """The name without the number at its end: `r0` of `r0-n07`."""
    return re.sub(r"[-.]?[a-z]?\d+$", "", node) or node


def natural(name: str) -> list[tuple[int, str]]:
    """The order people count in: n2 before n10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def is_ready(node: Node) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)


class _Lookups:
    """What was observed, by name."""

    def __init__(self, observed: Observed, letters: Mapping[str, str]) -> None:
        self._observed = observed
        self._letters = letters
        self._cards = {card.metadata.name: card for card in observed.cards}
        self._states = {partition.metadata.name: partition for partition in observed.partitions}
        self._seats = Counter({found.spec.node_name: len(found.spec.devices) for found in observed.slices})
        self._running = {key_of(pod) for pod in observed.pods if pod.status.phase == "Running"}
        self._claims: dict[tuple[str, str], list[ResourceClaim]] = {}
        for claim in observed.claims:
            for place in itertools.product(claim_nodes(claim), domain_uids(claim)):
                self._claims.setdefault(place, []).append(claim)

    def rack(self, name: str, nodes: Sequence[Node]) -> Rack:
        product = next((node.metadata.labels.get(PRODUCT_LABEL, "") for node in nodes), "")
        found = self.partition(nodes)
        state = found.status.summary.state.value if found else ""
        trays = tuple(self.tray(node) for node in nodes)
        return Rack(name, trays, product.removeprefix("NVIDIA").strip(" -"), state)

    def partition(self, nodes: Iterable[Node]) -> NVLinkPartition | None:
        cards = (self._cards.get(node.metadata.name) for node in nodes)
        return next(
            (self._states[c.status.partition] for c in cards if c and c.status.partition in self._states), None
        )

    def tray(self, node: Node) -> Tray:
        name = node.metadata.name
        card = self._cards.get(name)
        return Tray(
            name,
            is_ready(node),
            card.status.imex_state.value if card else "",
            card.status.fabric.state.value if card else "pending",
            self._seats[name],
            tuple(self.holdings(name)),
        )

    def holdings(self, node: str) -> Iterable[Holding]:
        """A pod runs when its claims are prepared: its container has the channel."""
        for letter, uid in sorted((letter, uid) for uid, letter in self._letters.items()):
            if claims := self._claims.get((node, uid)):
                yield Holding(letter, len(claims), prepared=any(map(self._is_in_use, claims)))

    def _is_in_use(self, claim: ResourceClaim) -> bool:
        return any(Key(claim.metadata.namespace, pod) in self._running for pod in claim.pods)

    def domains(self, grouped: Mapping[str, Sequence[Node]]) -> tuple[Domain, ...]:
        names = {found.metadata.name: rack for rack, nodes in grouped.items() if (found := self.partition(nodes))}
        shown = (domain for domain in self._observed.domains if domain.metadata.uid in self._letters)
        told = (
            Domain(
                self._letters[domain.metadata.uid],
                domain.metadata.namespace,
                domain.metadata.name,
                domain.status.status.value,
                tuple(self._places(domain.metadata.uid, names)),
            )
            for domain in shown
        )
        return tuple(sorted(told, key=lambda domain: domain.letter))

    def _places(self, uid: str, names: Mapping[str, str]) -> Iterable[Place]:
        for partition in sorted(self._observed.partitions, key=lambda one: names.get(one.metadata.name, "")):
            for one in partition.status.channels:
                if one.compute_domain.uid == uid and one.state is ChannelState.ASSIGNED:
                    yield Place(names.get(partition.metadata.name, partition.metadata.name[:8]), one.channel)


def tally(observed: Observed) -> Tally:
    claims = Counter(claim_state(claim) for claim in observed.claims)
    pods = Counter(pod.status.phase or "Unknown" for pod in observed.pods)
    return Tally(
        tuple((state, claims[state]) for state in _CLAIM_STATES if claims[state]),
        tuple((phase, pods[phase]) for phase in _PHASES if pods[phase]),
    )


def claim_state(claim: ResourceClaim) -> str:
    if claim.status.allocation is None:
        return "pending"
    return "reserved" if claim.status.reserved_for else "allocated"
