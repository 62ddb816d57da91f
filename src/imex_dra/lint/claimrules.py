"""Rules: do the containers that need the channel get it?"""

from collections.abc import Iterator

from imex_dra.lint.findings import Severity
from imex_dra.lint.manifests import Manifests, nearest
from imex_dra.lint.placement import needs_nodes
from imex_dra.lint.pods import Claim, Container, Pods
from imex_dra.lint.rule import Problem, rule
from imex_dra.lint.values import Value
from imex_dra.lint.workloads import PER_NODE

_CLAIMED = ("resourceClaimTemplateName", "resourceClaimName")
"""A claim has exactly one of these fields."""


def _listing(pods: Pods, claim: str) -> list[Container]:
    return [c for c in pods.containers if claim in (listed.scalar for listed in c.listed)]


@rule(
    "IMEX105",
    Severity.ERROR,
    "No container lists the claim of the channel",
    why="""A claim has two places: the pod has it in resourceClaims, and each container that needs the channel
    lists it in resources.claims. Without the second one no container gets the device, and NCCL fails or uses the
    network.""",
)
def claim_not_listed(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.claiming:
        for claim in manifests.channel_claims(pods):
            if claim.name and not _listing(pods, claim.name) and not list(_misplaced(pods)):
                message = f"the pod has claim {claim.name}, but no container lists it: none gets the channel"
                step = f"add `claims: [{{name: {claim.name}}}]` to resources of each container that needs it"
                yield Problem(pods.object, claim.value, message, step)


@rule(
    "IMEX106",
    Severity.ERROR,
    "A container lists a claim that its pod does not have",
    why="""The name in resources.claims is that of an entry in resourceClaims of the pod, not the name of a
    template or of a ComputeDomain. The API server rejects such a pod. For a Job or an MPIJob that happens only
    when the controller creates the pods.""",
)
def claim_not_in_pod(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.pods:
        names = [claim.name for claim in pods.claims]
        for container in pods.containers:
            for listed in container.listed:
                if listed.scalar and listed.scalar not in names and not list(_misplaced(pods)):
                    meant = nearest(listed.scalar, names) or (names[0] if len(names) == 1 else "")
                    message = (
                        f"container {container.name} lists claim {listed.scalar}, which the pod does not have"
                    )
                    step = f"use {meant}" if meant else "add the claim to resourceClaims of the pod"
                    yield Problem(pods.object, listed, message, step)


@rule(
    "IMEX107",
    Severity.WARNING,
    "A container with GPUs does not list the claim of the channel",
    why="""Only containers that list the claim get the channel. Here another container of the pod lists it, but
    this one requests GPUs, or tells NCCL to use multi-node NVLink.""",
)
def gpus_without_channel(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.claiming:
        for claim in manifests.channel_claims(pods):
            listing = _listing(pods, claim.name)
            for container in pods.containers if listing else ():
                wants = container.gpus or container.wants_multi_node_nvlink
                if wants and not container.init and not _lists_any(manifests, pods, container):
                    cause = "requests GPUs" if container.gpus else "sets NCCL_MNNVL_ENABLE"
                    message = f"container {container.name} {cause}, but does not list claim {claim.name}"
                    step = f"add `claims: [{{name: {claim.name}}}]` to its resources"
                    yield Problem(pods.object, container.value, message, step)


def _lists_any(manifests: Manifests, pods: Pods, container: Container) -> bool:
    names = {claim.name for claim in manifests.channel_claims(pods)}
    return any(listed.scalar in names for listed in container.listed)


@rule(
    "IMEX108",
    Severity.WARNING,
    "NCCL must use multi-node NVLink, but the pod claims no channel",
    why="""With NCCL_MNNVL_ENABLE=1 or 2 NCCL tries to share memory between nodes, and fails if it cannot. Each
    process needs an IMEX channel for it (without one: CUDA error 800, operation not permitted). Channels are not
    provided to every pod: the pod has to claim one.""",
)
def nvlink_without_channel(manifests: Manifests) -> Iterator[Problem]:
    claiming = {id(pods.object) for pods in manifests.claiming}
    for pods in manifests.pods:
        # A launcher sets variables for its workers, and needs no channel itself.
        launcher = id(pods.object) in claiming and not pods.gpus
        if launcher or manifests.channel_claims(pods):
            continue
        for container in pods.containers:
            if container.wants_multi_node_nvlink and not container.variable("NVIDIA_IMEX_CHANNELS").exists:
                message = f"container {container.name} sets NCCL_MNNVL_ENABLE, but the pod claims no IMEX channel"
                step = "create a ComputeDomain, and claim from its template"
                yield Problem(pods.object, container.variable("NCCL_MNNVL_ENABLE"), message, step)


@rule(
    "IMEX109",
    Severity.WARNING,
    "Pods on several nodes share one ResourceClaim",
    why="""A channel device belongs to a node. A ResourceClaim that pods name by resourceClaimName is allocated
    once, and all of them must then run on that node. Pods on several nodes each need a claim of their own, from a
    template. The rule applies if one node cannot hold the pods: they require different nodes, or more than 4 GPUs
    together.""",
)
def shared_claim(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.claiming:
        for claim in manifests.channel_claims(pods):
            several = pods.template.pods is PER_NODE or (needs_nodes(pods) or 0) > 1
            if claim.shared.text and several:
                message = f"ResourceClaim {claim.shared.text} is shared by {pods}, but allocated on one node only"
                step = "use resourceClaimTemplateName with the template of the ComputeDomain"
                yield Problem(pods.object, claim.shared, message, step)


@rule(
    "IMEX110",
    Severity.ERROR,
    "A claim is in a wrong place",
    why="""resourceClaims belongs to the spec of the pod, beside containers. claims belongs to resources of a
    container, beside requests and limits. Custom resources such as MPIJob often accept other fields in a
    template, and ignore them: the pods then start without a channel.""",
)
def claim_misplaced(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.pods:
        for value, message, step in _misplaced(pods):
            yield Problem(pods.object, value, message, step)


def _misplaced(pods: Pods) -> Iterator[tuple[Value, str, str]]:
    to_pod = "move it to the spec of the pod, beside containers"
    to_resources = "move it to resources.claims of the container, beside requests and limits"
    outside = (pods.template.value, pods.template.value["metadata"], pods.object.value["spec"])
    for place in outside:
        # A Pod is its own template: its spec is the right place.
        if place["resourceClaims"].exists and place is not pods.spec:
            yield place["resourceClaims"], "resourceClaims is outside of the pod's spec", to_pod
    for container in pods.containers:
        value, name = container.value, container.name
        if value["resourceClaims"].exists:
            yield value["resourceClaims"], f"resourceClaims is in container {name}", to_pod
        for holder, where in (
            (value, "outside of its resources"),
            (value.at("resources.requests"), "in resources.requests"),
            (value.at("resources.limits"), "in resources.limits"),
        ):
            if holder["claims"].exists:
                yield holder["claims"], f"claims of container {name} is {where}", to_resources


@rule(
    "IMEX111",
    Severity.ERROR,
    "A claim of a pod names neither a template nor a ResourceClaim",
    why="""An entry of resourceClaims has a name and exactly one of resourceClaimTemplateName and
    resourceClaimName. Until Kubernetes 1.30 these two were in a field source, which is not there any more. The API
    server rejects a pod without them. For a Job or an MPIJob that happens only when the controller creates the
    pods.""",
)
def claim_without_template(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.pods:
        for claim in pods.claims:
            if not any(claim.value[field].filled for field in (*_CLAIMED, "podGroupResourceClaim")):
                who = f"claim {claim.name}" if claim.name else "an entry without a name"
                yield Problem(pods.object, claim.value, *_instead(claim, who))


def _instead(claim: Claim, who: str) -> tuple[str, str]:
    """Message and next step, with the field that was probably meant."""
    for field in _CLAIMED:
        if claim.value["source"][field].filled:
            return f"{who} has source, which Kubernetes 1.31 removed", f"move {field} out of source, beside name"
    for field, value in claim.value.items():
        if field not in ("name", *_CLAIMED) and value.filled and (meant := _similar(field)):
            return f"{who} has {field}, which is no field", f"use {meant}"
    step = f"add {_CLAIMED[0]} with the template of the ComputeDomain"
    return f"{who} names neither a template nor a ResourceClaim", step


def _similar(field: str) -> str:
    lower = {known.lower(): known for known in _CLAIMED}
    return lower.get(nearest(field.lower(), lower), "")


RULES = (
    claim_not_listed,
    claim_not_in_pod,
    gpus_without_channel,
    nvlink_without_channel,
    shared_claim,
    claim_misplaced,
    claim_without_template,
)
