from msgspec import structs

from imex_dra.api.computedomain import AllocationMode
from imex_dra.api.meta import OwnerReference
from imex_dra.api.names import CHANNEL_CLASS, DRIVER
from imex_dra.api.opaque import ComputeDomainChannelConfig, parse_channel_config
from imex_dra.controller.templates import is_ours, template_for
from tests.controller.claims import domain


def test_the_template_has_the_name_that_the_computedomain_gives_it_or_its_own() -> None:
    assert template_for(domain("job", template="channels")).metadata.name == "channels"
    assert template_for(domain("job")).metadata.name == "job"
    assert template_for(domain("job")).metadata.namespace == "team"


def test_it_asks_for_one_channel_as_the_peers_template_does() -> None:
    devices = template_for(domain()).spec.spec.devices
    (request,) = devices.requests or ()
    assert request.name == "channel"
    assert request.exactly is not None
    assert request.exactly.device_class_name == CHANNEL_CLASS == "compute-domain-default-channel.nvidia.com"


def test_the_node_reads_in_its_config_what_the_computedomain_asked_for() -> None:
    wanted = domain("job", template="channels", mode=AllocationMode.ALL)
    (config,) = template_for(wanted).spec.spec.devices.config
    assert config.requests == ("channel",)
    assert config.opaque is not None
    assert config.opaque.driver == DRIVER == "compute-domain.nvidia.com"
    assert parse_channel_config(config.opaque.parameters) == ComputeDomainChannelConfig(
        domain_id="uid-job", allocation_mode=AllocationMode.ALL
    )


def test_claims_carry_the_domains_uid_as_a_label_for_people() -> None:
    template = template_for(domain("job"))
    assert template.spec.metadata.labels == {"resource.nvidia.com/computeDomain": "uid-job"}


def test_ours_is_what_we_made_for_this_very_computedomain() -> None:
    mine = domain("job")
    template = template_for(mine)
    assert is_ours(template, mine)
    remade = structs.replace(mine, metadata=structs.replace(mine.metadata, uid="uid-later"))
    assert not is_ours(template, remade)
    owner = OwnerReference("resource.nvidia.com/v1beta1", "ComputeDomain", "job", "uid-job", controller=False)
    for owners in ((), (owner,)):
        theirs = structs.replace(template, metadata=structs.replace(template.metadata, owner_references=owners))
        assert not is_ours(theirs, mine)
