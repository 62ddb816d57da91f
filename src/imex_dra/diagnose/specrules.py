"""Rules of `lint`, on pods that exist: the same ids, titles and sentences.

Of a running cluster everything is known, so that a template that is not there is an error, not a question.
"""

from collections.abc import Iterator

from imex_dra.api.meta import Key
from imex_dra.api.views import RESOURCE_CLAIM_TEMPLATES
from imex_dra.diagnose.cluster import Cluster, event_text, name_of
from imex_dra.diagnose.pods import ClusterPod
from imex_dra.diagnose.rule import Check, Link, Problem, Rule, about_pod
from imex_dra.diagnose.snapshot import Plain
from imex_dra.lint.manifests import Manifests, nearest
from imex_dra.lint.pods import Claim, Object
from imex_dra.lint.rules import find_rule
from imex_dra.lint.values import from_plain

_LINTED = ("IMEX105", "IMEX107", "IMEX150", "IMEX151", "IMEX152")
"""Rules that need only the pod and its templates."""

_CREATION_FAILED = "FailedResourceClaimCreation"


def _without_template(cluster: Cluster) -> Iterator[tuple[ClusterPod, Claim]]:
    """Claims that Kubernetes cannot create, and that are probably meant for a channel."""
    for pod in cluster.pods:
        complete = cluster.has(RESOURCE_CLAIM_TEMPLATES.plural, "computedomains", namespace=pod.namespace)
        for claim in pod.claims if complete and not pod.ended else ():
            name = claim.template.text
            known = Key(pod.namespace, name) in cluster.templates or cluster.domain_of_template(
                pod.namespace, name
            )
            if not name or known or cluster.claim_of(pod, claim) is not None:
                continue
            if claim.looks_like_channel or _meant(cluster, pod, name) or _elsewhere(cluster, name):
                yield pod, claim


def _meant(cluster: Cluster, pod: ClusterPod, name: str) -> str:
    """The template that the user may have meant: of the ComputeDomain with this name, or with a similar one."""
    if domain := cluster.domains.get(Key(pod.namespace, name)):
        return domain.template_name
    templates = [domain.template_name for key, domain in cluster.domains.items() if key.namespace == pod.namespace]
    return nearest(name, templates)


def _elsewhere(cluster: Cluster, name: str) -> str:
    """A ComputeDomain of another namespace with this template."""
    return next((name_of(domain) for domain in cluster.domains.values() if domain.template_name == name), "")


def _unknown_template(cluster: Cluster) -> Iterator[Problem]:
    for pod, claim in _without_template(cluster):
        name = claim.template.text
        if _elsewhere(cluster, name):
            continue
        meant = _meant(cluster, pod, name)
        message = f"claim {claim.name} names template {name}, which does not exist in namespace {pod.namespace}"
        step = f"use {meant}" if meant else "create a ComputeDomain with this template"
        yield about_pod(pod, message, step, _said(cluster, pod))


def _other_namespace(cluster: Cluster) -> Iterator[Problem]:
    for pod, claim in _without_template(cluster):
        if elsewhere := _elsewhere(cluster, claim.template.text):
            message = f"template {claim.template.text} belongs to ComputeDomain {elsewhere}, in another namespace"
            step = f"create the ComputeDomain in namespace {pod.namespace}"
            yield about_pod(pod, message, step, _said(cluster, pod))


def _said(cluster: Cluster, pod: ClusterPod) -> str:
    events = cluster.events("Pod", pod.namespace, pod.name, pod.uid)
    failed = [event_text(event) for event in events if event.get("reason") == _CREATION_FAILED]
    return failed[-1] if failed else ""


def _linted(id: str) -> Check:
    def check(cluster: Cluster) -> Iterator[Problem]:
        lint_rule = find_rule(id)
        assert lint_rule is not None
        for problem in lint_rule.check(manifests(cluster)):
            key = Key(problem.object.namespace, problem.object.name)
            if problem.object.kind == "Pod":
                yield Problem("Pod", key, problem.message, problem.next_step, pods=frozenset({key}))

    return check


def manifests(cluster: Cluster) -> Manifests:
    """The live objects, as lint reads files."""
    if "manifests" not in cluster.memo:
        plain: list[Plain] = [
            *cluster.snapshot.of("computedomains"),
            *cluster.snapshot.of("resourceclaimtemplates"),
        ]
        objects = [pod.object for pod in cluster.pods if not pod.ended]
        cluster.memo["manifests"] = Manifests((*(Object("", from_plain(one)) for one in plain), *objects))
    found: Manifests = cluster.memo["manifests"]
    return found


def _live(id: str, link: Link, finds: str, check: Check) -> Rule:
    lint_rule = find_rule(id)
    assert lint_rule is not None
    return Rule(id, lint_rule.severity, link, lint_rule.title, lint_rule.why, finds, check)


_FINDS = {
    "IMEX105": "the pod has claim imex, but no container lists it: none gets the channel",
    "IMEX107": "container second requests GPUs, but does not list claim imex",
    "IMEX150": "container main sets NVIDIA_IMEX_CHANNELS, which does not claim a channel",
    "IMEX151": "/dev/nvidia-caps-imex-channels of the host is mounted, without a claim",
    "IMEX152": "container main is privileged, and can open the channels of other workloads",
}

RULES = (
    _live(
        "IMEX101",
        Link.TEMPLATE,
        "claim imex names template imex-chanel, which does not exist in namespace team",
        _unknown_template,
    ),
    _live(
        "IMEX103",
        Link.TEMPLATE,
        "template imex-channel belongs to ComputeDomain team/train, in another namespace",
        _other_namespace,
    ),
    *(_live(id, Link.POD, _FINDS[id], _linted(id)) for id in _LINTED),
)
