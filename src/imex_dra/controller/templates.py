"""The ResourceClaimTemplate of a ComputeDomain, and how one that somebody else created is recognized. Pure.

The spec of a template is immutable, but its metadata is not, and every user of the namespace can create a template
with the same name, owner and label. Such a template cannot reach another ComputeDomain's channel, because a node
acts on the assignment and on the claim's namespace only. It can keep pods from starting, so it is reported.
"""

from imex_dra.api import domainreasons
from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import ObjectMeta, OwnerReference, key_of
from imex_dra.api.names import (
    CHANNEL_CLASS,
    CHANNEL_REQUEST,
    DOMAIN_LABEL,
    DRIVER,
    READINESS_ANNOTATION,
    READINESS_MEMBERS,
)
from imex_dra.api.opaque import ComputeDomainChannelConfig, parse_channel_config
from imex_dra.api.reasons import Explanation
from imex_dra.api.views import (
    ClaimDevices,
    ClaimSpec,
    DeviceConfig,
    DeviceRequest,
    ExactRequest,
    OpaqueConfig,
    ResourceClaimTemplate,
    ResourceClaimTemplateSpec,
)


def template_for(domain: ComputeDomain) -> ResourceClaimTemplate:
    meta = domain.metadata
    owner = OwnerReference(COMPUTE_DOMAINS.api_version, COMPUTE_DOMAINS.kind, meta.name, meta.uid, controller=True)
    labels = {DOMAIN_LABEL: meta.uid}
    config = DeviceConfig((CHANNEL_REQUEST,), OpaqueConfig(DRIVER, _config(domain).to_parameters()))
    devices = ClaimDevices((DeviceRequest(CHANNEL_REQUEST, ExactRequest(CHANNEL_CLASS)),), (config,))
    return ResourceClaimTemplate(
        ObjectMeta(name=domain.template_name, namespace=meta.namespace, labels=labels, owner_references=(owner,)),
        ResourceClaimTemplateSpec(ObjectMeta(labels=labels | _claim_labels(domain)), ClaimSpec(devices)),
    )


def _claim_labels(domain: ComputeDomain) -> dict[str, str]:
    """What a node must know about the ComputeDomain when it prepares a claim, and does not want to read for it."""
    waits_for_peers = domain.metadata.annotations.get(READINESS_ANNOTATION) == READINESS_MEMBERS
    return {READINESS_ANNOTATION: READINESS_MEMBERS} if waits_for_peers else {}


def is_owned(template: ResourceClaimTemplate, domain: ComputeDomain) -> bool:
    """Compares UIDs: a template of a deleted ComputeDomain with the same name is not owned by this one."""
    owners = template.metadata.owner_references
    return any(owner.controller and owner.uid == domain.metadata.uid for owner in owners)


def template_problem(template: ResourceClaimTemplate, domain: ComputeDomain) -> Explanation | None:
    """Why the template with the ComputeDomain's template name is not the one that the controller creates."""
    names = {"template": str(key_of(template)), "domain": str(key_of(domain))}
    owned, serves = is_owned(template, domain), _serves(template, domain)
    if owned and serves:
        return None
    if owned:
        return domainreasons.template_forged(**names)
    if serves or template.metadata.labels.get(DOMAIN_LABEL) == domain.metadata.uid:
        return domainreasons.template_orphaned(**names)
    return domainreasons.template_taken(**names)


def is_orphan(template: ResourceClaimTemplate, domain: ComputeDomain) -> bool:
    """Whether it is the controller's template without its owner reference. Its spec contains the UID of the
    ComputeDomain, so a template of another one is never taken for it.
    """
    return not is_owned(template, domain) and _serves(template, domain)


def _serves(template: ResourceClaimTemplate, domain: ComputeDomain) -> bool:
    """Whether its claims are equivalent to those of the controller's template. An earlier version may have encoded
    the same configuration differently.
    """
    devices = template.spec.spec.devices
    if devices.requests != template_for(domain).spec.spec.devices.requests or len(devices.config) != 1:
        return False
    (config,) = devices.config
    if config.opaque is None or config.opaque.driver != DRIVER or config.requests not in ((), (CHANNEL_REQUEST,)):
        return False
    try:
        return parse_channel_config(config.opaque.parameters) == _config(domain)
    except ValueError:
        return False


def _config(domain: ComputeDomain) -> ComputeDomainChannelConfig:
    return ComputeDomainChannelConfig(domain_id=domain.metadata.uid, allocation_mode=domain.allocation_mode)
