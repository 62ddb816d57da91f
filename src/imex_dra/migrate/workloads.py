"""What a workload needs: a ComputeDomain of its own, claims, and affinity to one NVLink partition."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from imex_dra.api.computedomain import COMPUTE_DOMAINS, DNS_SUBDOMAIN
from imex_dra.api.names import CLIQUE_LABEL
from imex_dra.lint.manifests import Manifests
from imex_dra.lint.placement import PARTITION_NODES, held_together, needs_nodes, required_terms
from imex_dra.lint.pods import Container, Object, Pods
from imex_dra.lint.workloads import PER_NODE
from imex_dra.migrate.editor import Editor
from imex_dra.migrate.legacy import asking_containers, asks
from imex_dra.migrate.yamltext import NotEditable

WORKLOAD_LABEL = "imex-dra.io/workload"
"""Of the pods that claim a channel, so that affinity selects them and no launcher beside them."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_GROUP_LABEL = "leaderworkerset.sigs.k8s.io/group-index"


@dataclass(frozen=True, eq=False)
class Workload:
    """An object with pods; or the Pods without a controller in one file and namespace, as lint takes them."""

    object: Object
    templates: tuple[Pods, ...]

    @property
    def name(self) -> str:
        """For its ComputeDomain. Raises NotEditable."""
        name = self.object.name.removesuffix("*").rstrip("-")
        if self.object.kind == "Pod":
            name = re.sub(r"-\d+$", "", name)
        if not re.fullmatch(DNS_SUBDOMAIN, name):
            raise NotEditable("its name is no valid name for a ComputeDomain")
        return name

    def __str__(self) -> str:
        others = len({id(pods.object) for pods in self.templates}) - 1
        more = f" and {others} more Pod{'s' if others > 1 else ''}" if others > 0 else ""
        return f"{self.object}{more}"


def workloads_of(pods: Iterable[Pods]) -> list[Workload]:
    found: dict[Any, list[Pods]] = {}
    for one in pods:
        pod = one.object.kind == "Pod"
        key = (one.object.file, one.object.namespace) if pod else id(one.object)
        found.setdefault(key, []).append(one)
    return [Workload(templates[0].object, tuple(templates)) for templates in found.values()]


@dataclass
class Names:
    """Of ComputeDomains and templates, without those that the files have already."""

    taken: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, manifests: Manifests) -> "Names":
        domains = [(d.object.namespace, name) for d in manifests.domains for name in (d.object.name, d.template)]
        return cls({*domains, *((made.object.namespace, made.object.name) for made in manifests.hand_made)})

    def new(self, workload: Workload) -> tuple[str, str]:
        """Of the ComputeDomain, and of its template."""
        namespace = workload.object.namespace
        for number in range(1, len(self.taken) + 2):
            name = workload.name if number == 1 else f"{workload.name}-{number}"
            both = {(namespace, name), (namespace, f"{name}-channel")}
            if not both & self.taken:
                break
        self.taken |= both
        return name, f"{name}-channel"


def claimants(workload: Workload, manifests: Manifests) -> list[Pods]:
    """Templates that have to claim: those with GPUs, and those that asked in the old way."""
    return [
        pods
        for pods in workload.templates
        if not manifests.channel_claims(pods) and not _only_launches(pods) and (pods.gpus or asks(pods))
    ]


def _only_launches(pods: Pods) -> bool:
    works = pods.object.value.at("spec.runLauncherAsWorker").content is True
    return pods.object.kind == "MPIJob" and pods.template.role == "Launcher" and not (works or pods.gpus)


def add_domain(editor: Editor, workload: Workload, name: str, template: str, mode: str = "") -> None:
    metadata = {"name": name}
    if namespace := workload.object.metadata["namespace"].scalar:
        metadata["namespace"] = namespace
    channel: dict[str, Any] = {"resourceClaimTemplate": {"name": template}}
    if mode:
        channel["allocationMode"] = mode
    content = {
        "apiVersion": COMPUTE_DOMAINS.api_version,
        "kind": COMPUTE_DOMAINS.kind,
        "metadata": metadata,
        "spec": {"channel": channel},
    }
    editor.insert_before(workload.object.value, content)


def add_claim(editor: Editor, pods: Pods, template: str) -> None:
    taken = {claim.name for claim in pods.claims}
    name = next(name for name in ("imex", "imex-channel", "imex-compute-domain") if name not in taken)
    entry = {"name": name, "resourceClaimTemplateName": template}
    editor.yaml.merge(editor.node(pods.spec), {"resourceClaims": [entry]}, before="containers")
    for container in _needing(pods):
        editor.yaml.merge(editor.node(container.value), {"resources": {"claims": [{"name": name}]}})


def _needing(pods: Pods) -> Sequence[Container]:
    asking = {id(container) for container in asking_containers(pods)}
    running = [container for container in pods.containers if not container.init]
    needing = [
        container
        for container in pods.containers
        if id(container) in asking
        or (not container.init and (container.gpus or container.wants_multi_node_nvlink))
    ]
    return needing or running


def several(claiming: Sequence[Pods]) -> bool:
    numbers = [pods.template.pods for pods in claiming]
    return PER_NODE in numbers or sum(number or 0 for number in numbers) > 1


def fits_one_partition(pods: Pods) -> bool:
    return pods.template.pods is not PER_NODE and (needs_nodes(pods) or 0) <= PARTITION_NODES


def is_placed(pods: Pods) -> bool:
    return held_together(pods) or bool(required_terms(pods))


def add_affinity(editor: Editor, pods: Pods, workload: str) -> None:
    own = pods.labels.get(WORKLOAD_LABEL, "")
    label = {WORKLOAD_LABEL: own or workload[:63].rstrip("-.")}
    term: dict[str, Any] = {"topologyKey": CLIQUE_LABEL, "labelSelector": {"matchLabels": label}}
    if pods.object.kind == "LeaderWorkerSet":
        # Its groups are independent of each other: each may be in another partition.
        term["matchLabelKeys"] = [_GROUP_LABEL]
    affinity = {"affinity": {"podAffinity": {_REQUIRED: [term]}}}
    if not own:
        editor.yaml.merge(editor.node(pods.template.value), {"metadata": {"labels": label}}, before="spec")
    editor.yaml.merge(editor.node(pods.spec), affinity, before="containers")
