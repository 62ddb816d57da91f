"""What is said of an object that somebody creates. Pure: the rules of `imex_dra.lint`, with the cluster's objects.

Objects of other namespaces are never named: the reader may not know of them.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from imex_dra.api.claimreasons import invalid_config
from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.domainreasons import no_such_compute_domain, other_namespace
from imex_dra.api.names import DRIVER
from imex_dra.api.opaque import parse_channel_config
from imex_dra.lint import claimrules, domainrules, templaterules
from imex_dra.lint.findings import Severity
from imex_dra.lint.manifests import HandMade, Manifests
from imex_dra.lint.pods import Object
from imex_dra.lint.rule import Rule
from imex_dra.lint.values import from_plain

_RULES: dict[str, tuple[Rule, ...]] = {
    "Pod": (templaterules.template_unknown, claimrules.claim_not_listed, claimrules.gpus_without_channel),
    "ComputeDomain": (domainrules.template_taken,),
}
"""By kind. What they find is a warning: a pod runs without the channel that it does not get."""

_REQUEST, _CLUSTER = "request", "cluster"


class Verdict(NamedTuple):
    rejections: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Known(NamedTuple):
    """What the cluster has."""

    domains: tuple[ComputeDomain, ...] = ()
    """Of the namespace of the object."""
    elsewhere: frozenset[str] = frozenset()
    """UIDs, of those that the object names, of ComputeDomains in other namespaces."""
    templates: frozenset[str] = frozenset()
    """Of those that a pod names: the names of templates that exist in its namespace."""
    foreign_template: bool = False
    """Whether a template that is not ours has the name that a new ComputeDomain needs."""
    largest_partition: int = 0
    """Nodes of the largest NVLinkPartition; 0 if there is none."""


def review(obj: dict[str, Any], namespace: str, known: Known) -> Verdict:
    """Raises ValueError if the object is nested too deeply."""
    subject = Object(_REQUEST, from_plain(obj), namespace)
    match subject.kind:
        case "ResourceClaim" | "ResourceClaimTemplate":
            return Verdict(rejections=tuple(_claim_rejections(HandMade(subject), namespace, known)))
        case "Pod":
            return Verdict(warnings=(*_findings(subject, known), *_missing_templates(subject, known)))
        case "ComputeDomain":
            return Verdict(warnings=(*_findings(subject, known), *_domain_warnings(subject, known)))
    return Verdict()


def named_domains(obj: dict[str, Any]) -> set[str]:
    """UIDs of the ComputeDomains that a claim or template names."""
    return {uid for uid, _ in _configs(HandMade(Object(_REQUEST, from_plain(obj))))}


def named_templates(obj: dict[str, Any]) -> set[str]:
    """Of the claims of a pod."""
    claims = from_plain(obj).at("spec.resourceClaims").elements()
    return {claim["resourceClaimTemplateName"].text for claim in claims} - {""}


def _configs(made: HandMade) -> Iterator[tuple[str, str]]:
    """UID of the ComputeDomain, and what is wrong with the configuration; one of them is empty."""
    for _, opaque in made.configs():
        if opaque["driver"].text != DRIVER:
            continue
        try:
            parameters = msgspec.Raw(msgspec.json.encode(opaque["parameters"].plain()))
            yield parse_channel_config(parameters).domain_id, ""
        except (ValueError, TypeError) as error:
            yield "", str(error)


def _claim_rejections(made: HandMade, namespace: str, known: Known) -> Iterator[str]:
    here = {domain.metadata.uid for domain in known.domains}
    claim = f"{namespace}/{made.object.name}"
    for uid, problem in _configs(made):
        if problem:
            yield invalid_config(claim=claim, cause=problem).message()
        elif uid in known.elsewhere:
            yield other_namespace(claim=claim, domain=uid, namespace=namespace).message()
        elif uid not in here:
            yield no_such_compute_domain(claim=claim, uid=uid, namespace=namespace).message()


def _findings(subject: Object, known: Known) -> Iterator[str]:
    # Last: of two ComputeDomains with one template name, the rule blames the later one.
    manifests = Manifests((*_objects(known.domains, without=subject), subject))
    for rule in _RULES[subject.kind]:
        for found in rule.check(manifests):
            if found.object is subject and rule.severity is not Severity.NOTE:
                yield f"{rule.id} {found.message}; {found.next_step}"


def _objects(domains: Iterable[ComputeDomain], *, without: Object) -> Iterator[Object]:
    for domain in sorted(domains, key=lambda found: found.metadata.name):
        if without.kind != COMPUTE_DOMAINS.kind or domain.metadata.name != without.name:
            yield Object(_CLUSTER, from_plain(_plain(domain)))


def _plain(domain: ComputeDomain) -> dict[str, Any]:
    metadata = {"name": domain.metadata.name, "namespace": domain.metadata.namespace}
    channel = {"resourceClaimTemplate": {"name": domain.template_name}}
    return {
        "apiVersion": COMPUTE_DOMAINS.api_version,
        "kind": COMPUTE_DOMAINS.kind,
        "metadata": metadata,
        "spec": {"channel": channel},
    }


def _missing_templates(subject: Object, known: Known) -> Iterator[str]:
    manifests = Manifests((subject, *_objects(known.domains, without=subject)))
    unknown = {found.at.text for found in templaterules.template_unknown.check(manifests)}
    for pods in manifests.pods:
        for claim in pods.claims:
            name = claim.template.text
            exists = name in known.templates or manifests.domains_named(name)
            if not name or name in unknown or exists or not claim.looks_like_channel:
                continue
            yield (
                f"IMEX102 no ComputeDomain of namespace {subject.namespace} has the claim template {name} of claim"
                f" {claim.name}; the pod waits until one has it"
            )


def _domain_warnings(subject: Object, known: Known) -> Iterator[str]:
    if known.foreign_template:
        yield (
            "IMEX121 a ResourceClaimTemplate that the controller did not create has the name of its template;"
            " delete it, or use another name"
        )
    wanted = subject.value.at("spec.numNodes").count(0)
    if 0 < known.largest_partition < wanted:
        yield (
            f"IMEX124 numNodes is {wanted}, and the largest NVLink partition has {known.largest_partition} nodes:"
            " not all pods can share memory; leave numNodes out, or use fewer nodes"
        )
