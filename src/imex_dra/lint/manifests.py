"""The objects in the files: workloads with their claims, ComputeDomains, claims that a user wrote.

A pod names a template, and a ComputeDomain names it, too; nothing else connects them. Where one of the two has
no namespace, it is the one that kubectl will use, which the files do not say: such objects are taken to belong
together.
"""

import difflib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from imex_dra.api.computedomain import COMPUTE_DOMAINS
from imex_dra.api.names import DRIVER
from imex_dra.lint.documents import Source
from imex_dra.lint.pods import Claim, Object, Pods
from imex_dra.lint.values import Value
from imex_dra.lint.workloads import PER_NODE, templates_of

CHANNEL_CONFIG = "ComputeDomainChannelConfig"
_WITHOUT_PODS = {"ComputeDomain", "ResourceClaim", "ResourceClaimTemplate", "CustomResourceDefinition"}


@dataclass(frozen=True, eq=False)
class Domain:
    """A ComputeDomain."""

    object: Object

    @property
    def template(self) -> str:
        """Name of its ResourceClaimTemplate. Without a channel: its own name."""
        channel = self.object.value.at("spec.channel")
        return channel.at("resourceClaimTemplate.name").text if channel.filled else self.object.name

    @property
    def template_at(self) -> Value:
        return self.object.value.at("spec.channel.resourceClaimTemplate.name")


@dataclass(frozen=True, eq=False)
class HandMade:
    """A ResourceClaim or ResourceClaimTemplate in the files."""

    object: Object

    @property
    def devices(self) -> Value:
        spec = self.object.value["spec"]
        return (spec["spec"] if self.object.kind == "ResourceClaimTemplate" else spec)["devices"]

    def classes(self) -> Iterator[tuple[Value, Value]]:
        """Request, and the name of its DeviceClass. `exactly` is not there before resource.k8s.io/v1beta2."""
        for request in self.devices["requests"].elements():
            for holder in (request, request["exactly"], *request["firstAvailable"].elements()):
                if holder["deviceClassName"].exists:
                    yield request, holder["deviceClassName"]

    def configs(self) -> Iterator[tuple[Value, Value]]:
        """Config, and its opaque part."""
        for config in self.devices["config"].elements():
            if config["opaque"].filled:
                yield config, config["opaque"]

    @property
    def is_channel(self) -> bool:
        return any(class_.text.startswith("compute-domain") for _, class_ in self.classes()) or any(
            opaque["driver"].text == DRIVER or opaque["parameters"]["kind"].text == CHANNEL_CONFIG
            for _, opaque in self.configs()
        )


@dataclass(frozen=True, eq=False)
class Manifests:
    objects: tuple[Object, ...]
    ignored: dict[str, dict[int, frozenset[str]]] = field(default_factory=dict)

    @cached_property
    def domains(self) -> tuple[Domain, ...]:
        return tuple(Domain(o) for o in self.objects if is_domain(o) and o.group == COMPUTE_DOMAINS.group)

    @cached_property
    def hand_made(self) -> tuple[HandMade, ...]:
        kinds = ("ResourceClaim", "ResourceClaimTemplate")
        return tuple(HandMade(o) for o in self.objects if o.kind in kinds and o.group == "resource.k8s.io")

    @cached_property
    def pods(self) -> tuple[Pods, ...]:
        return tuple(
            Pods(obj, template)
            for obj in self.objects
            if obj.kind not in _WITHOUT_PODS
            for template in templates_of(obj.kind, obj.value)
        )

    def domain_of(self, pods: Pods, claim: Claim) -> Domain | None:
        """If several have the name: of the same namespace, and of the same file, as in a directory of examples."""

        def preference(domain: Domain) -> tuple[bool, bool]:
            return (domain.object.namespace != pods.object.namespace, domain.object.file != pods.object.file)

        named = self.domains_named(claim.template.text)
        found = [domain for domain in named if may_be_one_namespace(domain.object, pods.object)]
        return min(found, key=preference, default=None)

    def domains_named(self, template: str) -> list[Domain]:
        """Those with this claim template, in all namespaces."""
        return self._by_template.get(template, []) if template else []

    @cached_property
    def _by_template(self) -> dict[str, list[Domain]]:
        by_template: defaultdict[str, list[Domain]] = defaultdict(list)
        for domain in self.domains:
            by_template[domain.template].append(domain)
        return dict(by_template)

    def hand_made_of(self, pods: Pods, claim: Claim) -> HandMade | None:
        wanted = {"ResourceClaimTemplate": claim.template.text, "ResourceClaim": claim.shared.text}
        for made in self.hand_made:
            name = wanted[made.object.kind]
            if name and made.object.name == name and may_be_one_namespace(made.object, pods.object):
                return made
        return None

    def is_channel(self, pods: Pods, claim: Claim) -> bool:
        """Whether it claims a channel, as far as the files say; otherwise by its names."""
        if made := self.hand_made_of(pods, claim):
            return made.is_channel
        return bool(self.domains_named(claim.template.text)) or claim.looks_like_channel

    def channel_claims(self, pods: Pods) -> list[Claim]:
        return self._channel_claims[id(pods)]

    @cached_property
    def _channel_claims(self) -> dict[int, list[Claim]]:
        return {id(pods): [claim for claim in pods.claims if self.is_channel(pods, claim)] for pods in self.pods}

    @cached_property
    def claiming(self) -> tuple[Pods, ...]:
        """All pods that claim a channel."""
        return tuple(pods for pods in self.pods if self.channel_claims(pods))

    def users(self, domain: Domain) -> list[tuple[Pods, Claim]]:
        return self._users.get(id(domain), [])

    @cached_property
    def _users(self) -> dict[int, list[tuple[Pods, Claim]]]:
        users: defaultdict[int, list[tuple[Pods, Claim]]] = defaultdict(list)
        for pods in self.claiming:
            for claim in pods.claims:
                if domain := self.domain_of(pods, claim):
                    users[id(domain)].append((pods, claim))
        return dict(users)

    @cached_property
    def _jobs(self) -> dict[Hashable, list[Pods]]:
        jobs: defaultdict[Hashable, list[Pods]] = defaultdict(list)
        for pods in self.claiming:
            jobs[self._job(pods)].append(pods)
        return dict(jobs)

    def _job(self, pods: Pods) -> Hashable:
        """Pods without a controller are one job if they claim from one template."""
        if pods.object.kind != "Pod":
            return id(pods.object)
        return (pods.object.namespace, self.channel_claims(pods)[0].template.text)

    def several(self, pods: Pods) -> bool:
        """Whether the job of these pods, which claim a channel, has more than one such pod."""
        # By name: two files may contain the same Pod.
        numbers = {(str(o.object), o.template.role): o.template.pods for o in self._jobs[self._job(pods)]}.values()
        return PER_NODE in numbers or sum(number or 0 for number in numbers) > 1


def is_domain(obj: Object) -> bool:
    return obj.kind == COMPUTE_DOMAINS.kind and obj.group.endswith("nvidia.com")


def may_be_one_namespace(one: Object, other: Object) -> bool:
    return one.namespace == other.namespace or not (one.namespace and other.namespace)


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """The name that a user may have meant; empty if none is near."""
    return next(iter(difflib.get_close_matches(name, sorted(set(names)), 1, cutoff)), "")


def load(sources: Iterable[Source], namespace: str = "") -> Manifests:
    """`namespace` is that of objects that name none."""
    sources = tuple(sources)
    objects = tuple(
        Object(source.name, value, namespace)
        for source in sources
        for document in source.documents
        for value in _flattened(document)
    )
    return Manifests(objects, {source.name: source.ignored for source in sources})


def _flattened(document: Value) -> Iterator[Value]:
    """The objects of a List, which may contain Lists."""
    stack = [document]
    while stack:
        value = stack.pop()
        if value["kind"].text.endswith("List") and value["items"].exists:
            stack += reversed(value["items"].elements())
        elif value["kind"].text:
            yield value
