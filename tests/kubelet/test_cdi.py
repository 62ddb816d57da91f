"""What a claim puts into a container: edits of CDI specs in the node's directory, where the claim is listed."""

import json
from typing import Any

import pytest

from tests.kubelet.implementations import with_processes
from tests.kubelet.plugin import Plugin
from tests.kubelet.stage import FOR_EVER, Stage, container, unique

pytestmark = with_processes

SAY = "cat > /dev/termination-log"
CHANNEL = "/dev/nvidia-caps-imex-channels/channel7"
LOOK = f'(echo "$CHANNEL $ALWAYS"; cat /run/imex/word; test -e {CHANNEL} && echo device) 2>/dev/null | {SAY}'


@pytest.fixture
def device(stage: Stage) -> str:
    """A CDI device: an environment, a file, a device node; and what its spec gives with every device."""
    name = unique("dev")
    word = stage.kubelet.root / f"{name}.txt"
    word.write_text("hello\n")
    edits = {
        "env": ["CHANNEL=7"],
        "deviceNodes": [{"path": CHANNEL, **stage.kubelet.channel(7)}],
        "mounts": [{"hostPath": str(word), "containerPath": "/run/imex/word", "options": ["ro", "bind"]}],
    }
    spec = {
        "cdiVersion": "0.6.0",
        "kind": f"imex-dra.io/{name}",
        "devices": [{"name": "seven", "containerEdits": edits}],
        "containerEdits": {"env": ["ALWAYS=yes"]},
    }
    (stage.kubelet.root / "run" / "cdi" / f"{name}.json").write_text(json.dumps(spec))
    return f"imex-dra.io/{name}=seven"


def said(pod: Any, name: str = "c") -> str:
    return str(pod.container(name)["state"]["terminated"]["message"])


def claim_of(stage: Stage, plugin: Plugin, *devices: str) -> str:
    claim = stage.claim()
    plugin.cdi[claim] = list(devices)
    return claim


def test_only_containers_that_list_the_claim_get_its_devices(stage: Stage, device: str) -> None:
    claim = claim_of(stage, stage.registered_plugin(), device)
    without = {**container(LOOK, name="without"), "resources": {}}
    pod = stage.pod(claim, containers=[container(LOOK), without], restartPolicy="Never")
    pod.until_phase("Succeeded")
    assert said(pod) == "7 yes\nhello\ndevice\n"
    assert said(pod, "without") == " \n"


def test_an_init_container_gets_them_too(stage: Stage, device: str) -> None:
    claim = claim_of(stage, stage.registered_plugin(), device)
    first = container(LOOK, name="first", resources={"claims": [{"name": claim}]})
    pod = stage.pod(claim, initContainers=[first], containers=[container("exit 0")], restartPolicy="Never")
    pod.until_phase("Succeeded")
    assert said(pod, "first") == "7 yes\nhello\ndevice\n"


def test_an_unknown_device_is_a_create_error(stage: Stage) -> None:
    claim = claim_of(stage, stage.registered_plugin(), "imex-dra.io/nothing=here")
    pod = stage.pod(claim, containers=[FOR_EVER])
    status = pod.until_status(lambda status: "CreateContainerError" in str(status.get("containerStatuses")))
    waiting = status["containerStatuses"][0]["state"]["waiting"]
    assert waiting["reason"] == "CreateContainerError"
    assert "unresolvable CDI devices imex-dra.io/nothing=here" in waiting["message"]
    assert status["phase"] == "Pending"
    assert "unresolvable CDI devices imex-dra.io/nothing=here" in pod.until_event("Failed")
