"""The ResourceClaimTemplate of a ComputeDomain."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw, structs

from imex_dra.api.computedomain import AllocationMode
from imex_dra.api.meta import OwnerReference
from imex_dra.api.names import CHANNEL_CLASS, DOMAIN_LABEL, DRIVER
from imex_dra.api.opaque import ComputeDomainChannelConfig, parse_channel_config
from imex_dra.api.views import (
    ClaimDevices,
    ClaimSpec,
    DeviceConfig,
    DeviceRequest,
    DeviceSelector,
    ExactRequest,
    OpaqueConfig,
    ResourceClaimTemplate,
)
from imex_dra.controller.templates import is_orphan, is_owned, template_for, template_problem
from tests.controller.claims import configuration, domain


def test_the_template_has_the_name_in_the_spec_or_the_name_of_the_computedomain() -> None:
    assert template_for(domain("job", template="channels")).metadata.name == "channels"
    assert template_for(domain("job")).metadata.name == "job"
    assert template_for(domain("job")).metadata.namespace == "team"


def test_the_template_requests_one_channel_like_the_template_of_nvidias_driver() -> None:
    devices = template_for(domain()).spec.spec.devices
    (request,) = devices.requests or ()
    assert request.name == "channel"
    assert request.exactly is not None
    assert request.exactly.device_class_name == CHANNEL_CLASS == "compute-domain-default-channel.nvidia.com"


def test_the_config_carries_the_uid_and_the_allocation_mode() -> None:
    wanted = domain("job", template="channels", mode=AllocationMode.ALL)
    (config,) = template_for(wanted).spec.spec.devices.config
    assert config.requests == ("channel",)
    assert config.opaque is not None
    assert config.opaque.driver == DRIVER == "compute-domain.nvidia.com"
    assert parse_channel_config(config.opaque.parameters) == ComputeDomainChannelConfig(
        domain_id="uid-job", allocation_mode=AllocationMode.ALL
    )


def test_claims_are_labeled_with_the_uid_of_the_computedomain() -> None:
    template = template_for(domain("job"))
    assert template.spec.metadata.labels == {"resource.nvidia.com/computeDomain": "uid-job"}


def test_a_template_is_owned_only_by_the_computedomain_that_it_was_created_for() -> None:
    job = domain("job")
    template = template_for(job)
    assert is_owned(template, job)
    recreated = structs.replace(job, metadata=structs.replace(job.metadata, uid="uid-later"))
    assert not is_owned(template, recreated)
    owner = OwnerReference("resource.nvidia.com/v1beta1", "ComputeDomain", "job", "uid-job", controller=False)
    for owners in ((), (owner,)):
        other = structs.replace(template, metadata=structs.replace(template.metadata, owner_references=owners))
        assert not is_owned(other, job)


def test_a_template_as_the_controller_creates_it_is_right_whatever_its_labels() -> None:
    job, template = domain("job"), template_for(domain("job"))
    assert template_problem(template, job) is None
    labeled = structs.replace(template, metadata=structs.replace(template.metadata, labels={"team": "a"}))
    assert template_problem(labeled, job) is None


def test_a_template_that_names_the_computedomain_as_owner_but_requests_something_else_is_reported() -> None:
    job = domain("job")
    forged = structs.replace(template_for(domain("other")), metadata=template_for(job).metadata)
    problem = template_problem(forged, job)
    assert problem is not None
    assert problem.message() == (
        "ResourceClaimTemplate team/job names ComputeDomain team/job as its owner, but imex controller did not"
        " create it: its claims request something else; delete the ResourceClaimTemplate; imex controller creates"
        " it again"
    )


def test_a_template_without_its_owner_reference_is_reported_as_the_controllers_own() -> None:
    job, template = domain("job"), template_for(domain("job"))
    stripped = structs.replace(template, metadata=structs.replace(template.metadata, owner_references=()))
    problem = template_problem(stripped, job)
    assert problem is not None
    assert problem.reason == "TemplateOrphaned"
    assert is_orphan(stripped, job)
    assert not is_orphan(template, job)
    assert not is_orphan(stripped, domain("other"))


def test_any_other_template_has_taken_the_name() -> None:
    problem = template_problem(template_for(domain("other")), domain("job"))
    assert problem is not None
    assert problem.reason == "TemplateTaken"


def test_claims_get_the_readiness_of_the_computedomain_as_a_label_and_no_other_annotation() -> None:
    job = domain("job")
    assert template_for(job).spec.metadata.labels.keys() == {DOMAIN_LABEL}
    annotations = {"imex-dra.io/readiness": "members", "team.example/owner": "a"}
    waiting = structs.replace(job, metadata=structs.replace(job.metadata, annotations=annotations))
    labels = template_for(waiting).spec.metadata.labels
    assert labels == {DOMAIN_LABEL: job.metadata.uid, "imex-dra.io/readiness": "members"}


JOB = domain("job")
MADE = template_for(JOB)
REQUEST = DeviceRequest("channel", ExactRequest(CHANNEL_CLASS))
CONFIG = configuration("uid-job", "channel")
REORDERED = Raw(b'{"domainID":"uid-job","kind":"ComputeDomainChannelConfig"}')


def with_metadata(**changes: Any) -> ResourceClaimTemplate:
    return structs.replace(MADE, metadata=structs.replace(MADE.metadata, **changes))


def with_devices(*requests: DeviceRequest, config: tuple[DeviceConfig, ...] = (CONFIG,)) -> ResourceClaimTemplate:
    spec = structs.replace(MADE.spec, spec=ClaimSpec(ClaimDevices(requests, config)))
    return structs.replace(MADE, spec=spec)


@pytest.mark.parametrize(
    "template",
    [
        MADE,
        with_metadata(labels={}, finalizers=("somebody/else",)),
        with_devices(REQUEST, config=(configuration("uid-job"),)),
        with_devices(REQUEST, config=(DeviceConfig(("channel",), OpaqueConfig(DRIVER, REORDERED)),)),
    ],
    ids=["as created", "other metadata", "config for all requests", "config in another encoding"],
)
def test_a_template_that_serves_its_computedomain_is_no_problem(template: ResourceClaimTemplate) -> None:
    assert template_problem(template, JOB) is None


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (with_devices(REQUEST, config=(configuration("uid-other", "channel"),)), "TemplateForged"),
        (with_devices(REQUEST, config=(configuration("uid-job", "other"),)), "TemplateForged"),
        (with_devices(REQUEST, config=(configuration("uid-job", allocationMode="All"),)), "TemplateForged"),
        (with_devices(REQUEST, config=(configuration("uid-job", driver="gpu.example.com"),)), "TemplateForged"),
        (with_devices(REQUEST, config=(configuration("uid-job", unknown=1),)), "TemplateForged"),
        (with_devices(REQUEST, config=(CONFIG, CONFIG)), "TemplateForged"),
        (with_devices(REQUEST, config=()), "TemplateForged"),
        (with_devices(), "TemplateForged"),
        (with_devices(DeviceRequest("channel", ExactRequest("gpu.nvidia.com"))), "TemplateForged"),
        (with_devices(DeviceRequest("channel", ExactRequest(CHANNEL_CLASS, count=2))), "TemplateForged"),
        (
            with_devices(DeviceRequest("channel", ExactRequest(CHANNEL_CLASS, selectors=(DeviceSelector(),)))),
            "TemplateForged",
        ),
        (with_metadata(owner_references=()), "TemplateOrphaned"),
        (with_metadata(owner_references=(), labels={}), "TemplateOrphaned"),
        (
            structs.replace(with_devices(), metadata=with_metadata(owner_references=()).metadata),
            "TemplateOrphaned",
        ),
        (structs.replace(template_for(domain("other")), metadata=with_metadata().metadata), "TemplateForged"),
        (template_for(domain("other", template="job")), "TemplateTaken"),
    ],
)
def test_a_template_that_the_controller_did_not_create_is_recognized(
    template: ResourceClaimTemplate, reason: str
) -> None:
    problem = template_problem(template, JOB)
    assert problem is not None
    assert problem.reason == reason


def test_an_unchanged_template_survives_the_encoding_of_the_api_server() -> None:
    encoded = msgspec.json.encode(MADE)
    assert template_problem(msgspec.json.decode(encoded, type=ResourceClaimTemplate), JOB) is None
