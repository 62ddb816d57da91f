"""CDI devices of a claim are injected into the containers that list the claim."""

import json

import pytest

from tests.sandbox.kubelet.fakeplugin import FakePlugin
from tests.sandbox.kubelet.fixture import RUN_FOREVER, KubeletFixture, container, unique
from tests.sandbox.kubelet.implementations import with_processes

pytestmark = with_processes

CHANNEL = "/dev/nvidia-caps-imex-channels/channel7"
REPORT = (
    f'(echo "$CHANNEL $ALWAYS"; cat /run/imex/mounted; test -e {CHANNEL} && echo device) 2>/dev/null'
    " | cat > /dev/termination-log"
)


@pytest.fixture
def device(node: KubeletFixture) -> str:
    """A CDI device with a variable, a mount and a device node, in a spec with edits of its own."""
    name = unique("dev")
    mounted = node.kubelet.root / f"{name}.txt"
    mounted.write_text("hello\n")
    node.kubelet.create_device(CHANNEL)
    edits = {
        "env": ["CHANNEL=7"],
        "deviceNodes": [{"path": CHANNEL, "type": "c", "major": 238, "minor": 7, "fileMode": 0o666}],
        "mounts": [{"hostPath": str(mounted), "containerPath": "/run/imex/mounted", "options": ["ro", "bind"]}],
    }
    spec = {
        "cdiVersion": "0.6.0",
        "kind": f"imex-dra.io/{name}",
        "devices": [{"name": "seven", "containerEdits": edits}],
        "containerEdits": {"env": ["ALWAYS=yes"]},
    }
    (node.kubelet.root / "run" / "cdi" / f"{name}.json").write_text(json.dumps(spec))
    return f"imex-dra.io/{name}=seven"


def claim_with(node: KubeletFixture, plugin: FakePlugin, device: str) -> str:
    claim = node.claim()
    plugin.cdi_devices[claim] = [device]
    return claim


def test_only_containers_that_list_the_claim_get_its_devices(node: KubeletFixture, device: str) -> None:
    claim = claim_with(node, node.registered_plugin(), device)
    without = {**container(REPORT, name="without"), "resources": {}}
    pod = node.pod(claim, containers=[container(REPORT), without], restartPolicy="Never")
    pod.until_phase("Succeeded")
    assert pod.terminated()["message"] == "7 yes\nhello\ndevice\n"
    assert pod.terminated("without")["message"] == " \n"


def test_an_init_container_gets_the_devices_of_its_claims(node: KubeletFixture, device: str) -> None:
    claim = claim_with(node, node.registered_plugin(), device)
    init = container(REPORT, name="init", resources={"claims": [{"name": claim}]})
    pod = node.pod(claim, initContainers=[init], containers=[container("exit 0")], restartPolicy="Never")
    pod.until_phase("Succeeded")
    assert pod.terminated("init")["message"] == "7 yes\nhello\ndevice\n"


def test_an_unknown_device_keeps_the_container_from_being_created(node: KubeletFixture) -> None:
    claim = claim_with(node, node.registered_plugin(), "imex-dra.io/nothing=here")
    pod = node.pod(claim, containers=[RUN_FOREVER])
    status = pod.until_status(lambda status: "CreateContainerError" in str(status.get("containerStatuses")))
    waiting = status["containerStatuses"][0]["state"]["waiting"]
    assert waiting["reason"] == "CreateContainerError"
    assert "unresolvable CDI devices imex-dra.io/nothing=here" in waiting["message"]
    assert status["phase"] == "Pending"
    assert "unresolvable CDI devices imex-dra.io/nothing=here" in pod.until_event("Failed")
