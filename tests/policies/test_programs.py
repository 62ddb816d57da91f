"""The policies do not hinder the programs, with their own tokens."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.api.names import AUTHORITY_SECRET, DOMAIN_FINALIZER, LEASE, NAMESPACE
from imex_dra.api.nvlinknode import Fabric, FabricState
from imex_dra.base.errors import NotFound
from imex_dra.controller.leader import Leader
from imex_dra.controller.leader import run as run_controller
from imex_dra.controller.settings import Settings
from imex_dra.imex.ctl import ImexCtl
from imex_dra.kube.account import own_account
from imex_dra.node.program import run
from imex_sandbox.noderoot import NodeRoot
from imex_sandbox.simulated import HardwareFile, SimulatedHardware
from tests.node.publishing_node import running
from tests.policies.guarded import NVLINK_NODES, SLICES, Guarded, refusal
from tests.waiting import until_async

pytestmark = pytest.mark.kube


@pytest.fixture
def directory() -> Iterator[Path]:
    """Short, because it holds unix sockets."""
    path = Path(tempfile.mkdtemp(prefix="imex-"))
    yield path
    shutil.rmtree(path)


async def test_a_controller_serves_and_deletes_a_compute_domain(guarded: Guarded) -> None:
    path = f"{guarded.domains}/one"
    async with running(Leader(guarded.account("imex-controller"), "test").run()):
        await guarded.admin.post(guarded.domains, guarded.domain("one"))

        async def is_served() -> bool:
            found = await guarded.admin.read(path)
            has_status = bool(found.get("status", {}).get("conditions"))
            return has_status and found["metadata"].get("finalizers") == [DOMAIN_FINALIZER]

        await until_async(is_served)
        await guarded.user("owner").remove(path)

        async def is_gone() -> bool:
            return "not found" in await refusal(guarded.admin.read(path))

        await until_async(is_gone)


async def test_what_a_controller_creates_for_itself_belongs_to_its_service_account(guarded: Guarded) -> None:
    """So that it goes with it: tests/chart/test_install.py uninstalls the driver."""
    controller, namespace = guarded.account("imex-controller"), f"/api/v1/namespaces/{NAMESPACE}"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    for path in (f"{leases}/{LEASE}", f"{namespace}/secrets/{AUTHORITY_SECRET}"):
        await refusal(guarded.admin.remove(path))

    settings = Settings(daemon_certificates=True)
    async with running(run_controller(controller, namespace=NAMESPACE, settings=settings)):

        async def owners(path: str) -> list[tuple[str, str]]:
            try:
                found = await guarded.admin.read(path)
            except NotFound:
                return []
            return [(owner["kind"], owner["uid"]) for owner in found["metadata"]["ownerReferences"]]

        account = await guarded.admin.read(f"{namespace}/serviceaccounts/imex-controller")
        expected = [("ServiceAccount", account["metadata"]["uid"])]
        assert await until_async(lambda: owners(f"{leases}/{LEASE}")) == expected
        assert await until_async(lambda: owners(f"{namespace}/secrets/{AUTHORITY_SECRET}")) == expected
    # An owner in another namespace would be none, and the object would be deleted at once.
    assert await own_account(controller, guarded.namespace) == ()
    assert await own_account(guarded.admin, NAMESPACE) == ()


async def test_a_node_program_reports_and_publishes_and_withdraws(guarded: Guarded, directory: Path) -> None:
    name = f"n-{uuid.uuid4().hex[:8]}"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    await guarded.admin.post("/api/v1/nodes", node)
    root = NodeRoot(directory / "root")
    none = HardwareFile(Fabric(FabricState.NONE), boot_id="boot-1")
    root.make(none, address="10.0.0.1")
    program = run(
        guarded.account("imex-node", node=name),
        SimulatedHardware(root.path),
        node=name,
        address="10.0.0.1",
        kubelet=directory / "k",
        cdi=directory / "cdi",
        imex_directory=directory / "imex",
        ctl=ImexCtl(["/no/such/nvidia-imex-ctl"]),
    )

    async def reported(state: str) -> bool:
        found = await guarded.admin.read(NVLINK_NODES)
        states = {item["metadata"]["name"]: item.get("status", {}).get("fabric", {}) for item in found["items"]}
        return bool(states.get(name, {}).get("state") == state)

    async def published() -> bool:
        slices = (await guarded.admin.read(SLICES))["items"]
        return any(found["spec"].get("nodeName") == name for found in slices)

    async def withdrawn() -> bool:
        return not await published()

    async with running(program):
        await until_async(lambda: reported("none"))
        await until_async(published)
        root.write_hardware(HardwareFile(Fabric(FabricState.BROKEN, "for a moment"), boot_id="boot-1"))
        await until_async(lambda: reported("broken"))
        await until_async(withdrawn)
        root.write_hardware(none)
        await until_async(published)
