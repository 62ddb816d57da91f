"""Rules: does the claim template that a pod names exist, where the pod looks for it?"""

import re
from collections.abc import Iterator

from imex_dra.lint.findings import Severity
from imex_dra.lint.manifests import Domain, Manifests, may_be_one_namespace, nearest
from imex_dra.lint.pods import Claim, Pods
from imex_dra.lint.rule import Problem, rule

_PLACEHOLDER = re.compile(r"[\[\]<>{}$ ]")


def _unknown(manifests: Manifests) -> Iterator[tuple[Pods, Claim]]:
    """Claims whose template is in no namespace of the files."""
    for pods in manifests.pods:
        for claim in pods.claims:
            known = manifests.hand_made_of(pods, claim) or manifests.domains_named(claim.template.text)
            if claim.template.filled and not known:
                yield pods, claim


def _meant(manifests: Manifests, pods: Pods, claim: Claim) -> Domain | None:
    """The ComputeDomain whose template the user may have meant: of that name, with a similar template, or the only
    one without pods in the same file."""
    name = claim.template.text
    domains = [d for d in manifests.domains if may_be_one_namespace(d.object, pods.object) and d.template]
    for domain in domains:
        if domain.object.name == name:
            return domain
    near = nearest(name, (domain.template for domain in domains), 0.6 if claim.looks_like_channel else 0.8)
    if near:
        return next(domain for domain in domains if domain.template == near)
    beside = [
        d for d in domains if d.object.file == pods.object.file and d.object.namespace == pods.object.namespace
    ]
    unused = [domain for domain in beside if not manifests.users(domain)]
    return unused[0] if claim.looks_like_channel and len(unused) == 1 else None


@rule(
    "IMEX101",
    Severity.ERROR,
    "No ComputeDomain has the claim template that a pod names",
    why="""A pod names the ResourceClaimTemplate of its ComputeDomain, spec.channel.resourceClaimTemplate.name,
    not the ComputeDomain itself. With any other name Kubernetes cannot create the claim: the pod stays Pending,
    with the event FailedResourceClaimCreation. (One such event is harmless if the ComputeDomain was created at the
    same time, as with one file for both: the template follows, and Kubernetes tries again. No rule notes that.)
    In files, the rule applies if they have one that was probably meant, or if the name is a placeholder; in a
    running cluster, to every template that does not exist.""",
)
def template_unknown(manifests: Manifests) -> Iterator[Problem]:
    for pods, claim in _unknown(manifests):
        name, at = claim.template.text, claim.template
        if not name or _PLACEHOLDER.search(name):
            message = f"claim {claim.name} has a placeholder or no text as the name of its template"
            step = "write the name in spec.channel.resourceClaimTemplate.name of the ComputeDomain"
            yield Problem(pods.object, at, message, step)
        elif domain := _meant(manifests, pods, claim):
            if name == domain.object.name:
                message = f"claim {claim.name} names the ComputeDomain {name} instead of its template"
            else:
                message = f"claim {claim.name} names template {name}, which no ComputeDomain in the files has"
            step = f"use {domain.template}, the template of {domain.object}"
            yield Problem(pods.object, at, message, step)


@rule(
    "IMEX102",
    Severity.NOTE,
    "The claim template is not in the files",
    why="""Neither a ComputeDomain nor a ResourceClaimTemplate in the files has the name. That is fine if it
    exists in the cluster, in the namespace of the pod; lint cannot know. Give it the file of the ComputeDomain,
    too.""",
)
def template_elsewhere(manifests: Manifests) -> Iterator[Problem]:
    for pods, claim in _unknown(manifests):
        name = claim.template.text
        if not name or _PLACEHOLDER.search(name) or _meant(manifests, pods, claim):
            continue
        if claim.looks_like_channel:
            message = f"template {name} of claim {claim.name} is not in the files, and cannot be checked"
            step = "give the file of its ComputeDomain, too, or check with kubectl get resourceclaimtemplate"
            yield Problem(pods.object, claim.template, message, step)


@rule(
    "IMEX103",
    Severity.ERROR,
    "The ComputeDomain is in another namespace than the pod",
    why="""A ResourceClaimTemplate is in the namespace of its ComputeDomain, and a pod can only name a template of
    its own namespace. A ComputeDomain never serves claims of other namespaces.""",
)
def other_namespace(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.pods:
        for claim in pods.claims:
            elsewhere = manifests.domains_named(claim.template.text)
            here = manifests.domain_of(pods, claim) or manifests.hand_made_of(pods, claim)
            if elsewhere and not here:
                message = f"template {claim.template.text} belongs to {elsewhere[0].object}, in another namespace"
                step = f"create the ComputeDomain in namespace {pods.object.namespace}"
                yield Problem(pods.object, claim.template, message, step)


@rule(
    "IMEX104",
    Severity.WARNING,
    "Only one of ComputeDomain and pod has a namespace",
    why="""An object without a namespace is created in the namespace that kubectl uses at that moment. If that is
    not the namespace of the other object, the pod does not find the template. Give both the same namespace, or
    neither; or say with --namespace which one kubectl will use.""",
)
def one_namespace_missing(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.pods:
        for claim in pods.claims:
            domain = manifests.domain_of(pods, claim)
            if domain and domain.object.namespace != pods.object.namespace:
                it, other = ("a", "has none") if pods.object.namespace else ("no", "has one")
                message = f"it has {it} namespace, and {domain.object} {other}"
                step = "give both the same namespace, or use --namespace"
                yield Problem(pods.object, claim.template, message, step)


RULES = (template_unknown, template_elsewhere, other_namespace, one_namespace_missing)
