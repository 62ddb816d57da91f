"""Rules: is a ComputeDomain valid, and does it fit the workloads in the files?"""

import re
from collections.abc import Iterator
from typing import Any

from imex_dra.api.computedomain import COMPUTE_DOMAINS, DNS_SUBDOMAIN, AllocationMode, ComputeDomainSpec
from imex_dra.api.names import ALL_CHANNELS_ALLOWED, ALL_CHANNELS_LABEL
from imex_dra.api.schema import schema_of
from imex_dra.lint.findings import Severity
from imex_dra.lint.manifests import Domain, Manifests, is_domain, may_be_one_namespace, nearest
from imex_dra.lint.placement import needs_nodes
from imex_dra.lint.pods import Object, Pods
from imex_dra.lint.rule import Problem, rule
from imex_dra.lint.values import Value

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (tuple,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
}


@rule(
    "IMEX120",
    Severity.ERROR,
    "The ComputeDomain is invalid",
    why="""The spec has numNodes, and channel with resourceClaimTemplate.name and allocationMode. The API server
    rejects other values, and drops or rejects fields that it does not know. The spec is immutable: to change it,
    create another ComputeDomain.""",
)
def invalid_domain(manifests: Manifests) -> Iterator[Problem]:
    for obj in filter(is_domain, manifests.objects):
        for value, cause, step in (*_identity(obj), *_violations(obj.value["spec"], _spec_schema(), "spec")):
            yield Problem(obj, value, cause, step)


def _spec_schema() -> dict[str, Any]:
    return schema_of(ComputeDomainSpec)


def _identity(obj: Object) -> Iterator[tuple[Value, str, str]]:
    version, name = obj.value["apiVersion"], obj.metadata["name"]
    if version.text != COMPUTE_DOMAINS.api_version:
        yield version, f"apiVersion is {version.text}", f"use {COMPUTE_DOMAINS.api_version}"
    if not re.fullmatch(DNS_SUBDOMAIN, name.scalar) and not obj.metadata["generateName"].text:
        yield name, "metadata.name is no valid name", "use lower case letters, digits, - and ."
    if not obj.value["spec"].filled:
        yield obj.value["kind"], "it has no spec", "add spec.channel.resourceClaimTemplate.name"


def _violations(value: Value, schema: dict[str, Any], path: str) -> Iterator[tuple[Value, str, str]]:
    """What the API server would reject or drop, by the schema of the CRD."""
    if not value.filled:
        return
    content, type_ = value.content, schema["type"]
    if not isinstance(content, _TYPES[type_]) or (type_ == "integer" and isinstance(content, bool)):
        yield value, f"{path} is not of type {type_}", f"write a value of type {type_}"
        return
    properties: dict[str, Any] = schema.get("properties", {})
    for key, item in value.items():
        if key in properties:
            yield from _violations(item, properties[key], f"{path}.{key}")
        else:
            meant = nearest(key, properties)
            yield item, f"{path} has no field {key}", f"use {meant}" if meant else "remove it"
    for key in schema.get("required", ()):
        if not value[key].filled:
            yield value, f"{path}.{key} is missing", "add it"
    if "enum" in schema and content not in schema["enum"]:
        meant = nearest(value.text, schema["enum"])
        allowed = " or ".join(schema["enum"])
        yield value, f"{path} is {value.text}, which is not {allowed}", f"use {meant or allowed}"
    if "minimum" in schema and content < schema["minimum"]:
        yield value, f"{path} is less than {schema['minimum']}", "use a larger number"
    too_long = isinstance(content, str) and len(content) > schema.get("maxLength", len(content))
    if too_long or ("pattern" in schema and not re.search(schema["pattern"], value.text)):
        yield value, f"{path} is no valid name", "use lower case letters, digits, - and ."


@rule(
    "IMEX121",
    Severity.ERROR,
    "The claim template of a ComputeDomain has the name of another one",
    why="""The controller creates one ResourceClaimTemplate per ComputeDomain. If the name is taken in the
    namespace, by another ComputeDomain or by a template that a user wrote, pods claim from the other one, and the
    ComputeDomain has the condition TemplateReady False, reason TemplateTaken.""",
)
def template_taken(manifests: Manifests) -> Iterator[Problem]:
    first: dict[tuple[str, str], Domain] = {}
    for domain in manifests.domains:
        key = (domain.object.namespace, domain.template)
        other = first.setdefault(key, domain)
        if domain.template and other.object.name != domain.object.name:
            message = f"template {domain.template} is also that of {other.object}"
            step = "give each ComputeDomain a template name of its own"
            yield Problem(domain.object, domain.template_at, message, step)
        for made in manifests.hand_made:
            same = made.object.kind == "ResourceClaimTemplate" and made.object.name == domain.template
            if same and may_be_one_namespace(made.object, domain.object):
                message = f"{made.object} in the files has the name of the template that the controller creates"
                step = "remove the ResourceClaimTemplate from the files, or rename one of them"
                yield Problem(domain.object, domain.template_at, message, step)


@rule(
    "IMEX122",
    Severity.NOTE,
    "Several workloads use one ComputeDomain",
    why="""All pods of a ComputeDomain have the same channel in a partition, and so no workload is protected from
    the others. That is right for parts of one application that share memory on purpose. Otherwise give each
    workload a ComputeDomain of its own.""",
)
def several_workloads(manifests: Manifests) -> Iterator[Problem]:
    for domain in manifests.domains:
        workloads: dict[str, Object] = {}
        for pods, claim in manifests.users(domain):
            # Pods without a controller are taken for one workload.
            key = "Pods" if pods.object.kind == "Pod" else str(pods.object)
            new = key not in workloads
            workloads.setdefault(key, pods.object)
            if new and len(workloads) > 1:
                other = next(iter(workloads.values()))
                message = f"it shares the channel of {domain.object} with {other}"
                step = "create a ComputeDomain for each workload, unless they share memory on purpose"
                yield Problem(pods.object, claim.template, message, step)


@rule(
    "IMEX123",
    Severity.WARNING,
    "allocationMode All needs the permission of an administrator",
    why="""With All, pods get every channel of the partition, including those of other workloads. imex-dra refuses
    it, unlike NVIDIA's driver, unless the namespace has the label imex-dra.io/all-channels: allowed. The rule is
    silent if the files have the Namespace with this label.""",
)
def all_channels(manifests: Manifests) -> Iterator[Problem]:
    for domain in manifests.domains:
        mode = domain.object.value.at("spec.channel.allocationMode")
        if mode.text == AllocationMode.ALL and not _allowed(manifests, domain):
            message = "allocationMode All opens the memory of every workload in the partition"
            step = (
                "use Single, or ask an administrator to label the namespace"
                f" {ALL_CHANNELS_LABEL}={ALL_CHANNELS_ALLOWED}"
            )
            yield Problem(domain.object, mode, message, step)


def _allowed(manifests: Manifests, domain: Domain) -> bool:
    return any(
        obj.kind == "Namespace"
        and obj.name == domain.object.namespace
        and obj.metadata["labels"][ALL_CHANNELS_LABEL].text == ALL_CHANNELS_ALLOWED
        for obj in manifests.objects
    )


@rule(
    "IMEX124",
    Severity.WARNING,
    "numNodes does not fit the workload",
    why="""numNodes is the number of nodes with a claim from which on the ComputeDomain is Ready. It is
    deprecated, and starts or delays no pod. With more nodes than the workload has pods, the ComputeDomain is
    never Ready; with fewer nodes than it needs, it is Ready too early. Leave it out: Ready then means that all
    claims are prepared.""",
)
def wrong_num_nodes(manifests: Manifests) -> Iterator[Problem]:
    for domain in manifests.domains:
        value = domain.object.value.at("spec.numNodes")
        wanted = value.count(0)
        users = list({id(pods): pods for pods, _ in manifests.users(domain)}.values())
        if not wanted or not users or any(pods.template.pods is None for pods in users):
            continue
        number = sum((pods.template.pods or 0) * _groups(pods) for pods in users)
        needed = sum((needs_nodes(pods) or 0) * _groups(pods) for pods in users)
        if wanted > number:
            cause = f"but the workloads in the files have {number} pods: the ComputeDomain is never Ready"
        elif wanted < needed:
            cause = f"but the workloads in the files need {needed} nodes: the ComputeDomain is Ready too early"
        else:
            continue
        yield Problem(domain.object, value, f"numNodes is {wanted}, {cause}", "leave numNodes out")


def _groups(pods: Pods) -> int:
    """How many jobs the workload has, which all use the ComputeDomain."""
    return pods.object.value.at("spec.replicas").count(1) if pods.object.kind == "LeaderWorkerSet" else 1


RULES = (invalid_domain, template_taken, several_workloads, all_channels, wrong_num_nodes)
