"""The ResourceClaimTemplate of a ComputeDomain. Pure."""

from imex_dra.api.computedomain import COMPUTE_DOMAINS, ComputeDomain
from imex_dra.api.meta import AnnotatedMeta, ObjectMeta, OwnerReference
from imex_dra.api.names import CHANNEL_CLASS, CHANNEL_REQUEST, DOMAIN_LABEL, DRIVER
from imex_dra.api.opaque import ComputeDomainChannelConfig
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
    config = ComputeDomainChannelConfig(domain_id=meta.uid, allocation_mode=domain.allocation_mode)
    devices = ClaimDevices(
        requests=(DeviceRequest(CHANNEL_REQUEST, ExactRequest(CHANNEL_CLASS)),),
        config=(DeviceConfig((CHANNEL_REQUEST,), OpaqueConfig(DRIVER, config.to_parameters())),),
    )
    return ResourceClaimTemplate(
        ObjectMeta(name=domain.template_name, namespace=meta.namespace, labels=labels, owner_references=(owner,)),
        ResourceClaimTemplateSpec(AnnotatedMeta(labels=labels), ClaimSpec(devices)),
    )


def is_ours(template: ResourceClaimTemplate, domain: ComputeDomain) -> bool:
    """Made by us for this very ComputeDomain, not for one of the same name before it."""
    owners = template.metadata.owner_references
    return any(owner.controller and owner.uid == domain.metadata.uid for owner in owners)
