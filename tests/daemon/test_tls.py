"""TLS between IMEX daemons, with a certificate as the controller issues it, and as the kubelet mounts it."""

from typing import Any

import pytest
from msgspec import structs

from imex_dra.api.nvlinknode import ImexState
from imex_dra.daemon.supervisor import Found
from tests.daemon.secret import Secret, certificate, new_authority
from tests.daemon.simulatednode import Managed, Rack, SimulatedNode
from tests.waiting import until_async

MISSING = "there is no certificate for TLS between IMEX daemons: check that Secret imex-daemon-tls exists"
INTERVALS = {"CERTIFICATE_INTERVAL": "0.2", "RELOAD_INTERVAL": "0"}


def secret_of(node: SimulatedNode) -> Secret:
    return Secret(node.root.imex / "tls")


def with_secret(node: SimulatedNode) -> dict[str, Any]:
    """Options of a node whose daemon uses TLS."""
    environment = {"TLS_DIRECTORY": str(node.root.imex / "tls"), **INTERVALS}
    return {"supervisor": {"environment": environment}, "tls": True}


def find(node: SimulatedNode) -> Found:
    found = node.files.find()
    assert found is not None
    return found


async def connect(rack: Rack, here: Managed, there: Managed) -> None:
    here.desire(rack.member_list(0, 0, 1))
    there.desire(rack.member_list(1, 0, 1))
    await here.until(lambda state: state.connected == (1,))
    await there.until(lambda state: state.connected == (0,))


@pytest.mark.timeout(300)
async def test_daemons_wait_for_the_certificate_connect_and_load_its_renewal_without_a_restart(
    rack: Rack, node: SimulatedNode
) -> None:
    other = SimulatedNode(rack, 1)
    secrets = [secret_of(node), secret_of(other)]
    async with node.managed(**with_secret(node)) as here, other.managed(**with_secret(other)) as there:
        here.desire(rack.member_list(0, 0, 1))
        waiting = await here.until(lambda state: state.problem)
        assert waiting.state is ImexState.UNAVAILABLE
        assert waiting.problem.startswith(MISSING)
        authority = await new_authority()
        first = await certificate(authority)
        for secret in secrets:
            secret.write(authority, first)
        await connect(rack, here, there)
        before = find(node)
        renewed = await certificate(authority)
        secrets[0].write(authority, renewed)
        await until_async(lambda: find(node).loaded_certificate not in ("", before.loaded_certificate))
        # The other one still has the first certificate: both are of the same authority.
        await here.until(lambda state: state.connected == (1,))
        assert (find(node).pid, find(node).restarts) == (before.pid, 0)
        assert structs.replace(here.states[-1], connected=None).problem == ""


@pytest.mark.timeout(300)
async def test_a_daemon_with_a_certificate_of_another_authority_stays_disconnected(
    rack: Rack, node: SimulatedNode
) -> None:
    other = SimulatedNode(rack, 1)
    authorities = [await new_authority(), await new_authority()]
    secrets = [secret_of(node), secret_of(other)]
    for secret, authority in zip(secrets, authorities, strict=True):
        secret.write(authority, await certificate(authority))
    async with node.managed(**with_secret(node)) as here, other.managed(**with_secret(other)) as there:
        here.desire(rack.member_list(0, 0, 1))
        there.desire(rack.member_list(1, 0, 1))
        await here.until(lambda state: state.connected == ())
        await there.until(lambda state: state.connected == ())
        # With the certificate of the first authority it is accepted, so TLS alone had kept it out.
        secrets[1].write(authorities[0], await certificate(authorities[0]))
        await here.until(lambda state: state.connected == (1,))
