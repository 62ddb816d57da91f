"""Other components that give IMEX channels to containers, as their vendors document and install them."""

from pathlib import Path

import pytest

from imex_dra.api.nvlinknode import Isolation, IsolationState
from imex_dra.cdi.spec import Device, Spec
from imex_dra.hardware.channelnodes import ChannelNodes
from imex_dra.hardware.isolation import detect_isolation
from tests.devicenodes import require_mknod

ENFORCED = Isolation(IsolationState.ENFORCED)

PACKAGE_CONFIG = "etc/nvidia-container-runtime/config.toml"
OPERATOR_CONFIG = "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"

HINT = f"set ignore-imex-channel-requests = true under [features] in /{PACKAGE_CONFIG}"
BY_ENVIRONMENT = (
    "the NVIDIA Container Toolkit gives every container the channels that its variable NVIDIA_IMEX_CHANNELS names:"
    f" {HINT}"
)
BY_MOUNT = (
    "the NVIDIA Container Toolkit gives a container the channels that it mounts in"
    f" /var/run/nvidia-container-devices/imex: {HINT}"
)


def write(root: Path, name: str, content: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def reason(root: Path) -> str:
    isolation = detect_isolation(root)
    assert isolation.state is IsolationState.OPEN
    return isolation.reason


def test_a_host_without_the_toolkit_enforces_isolation(tmp_path: Path) -> None:
    assert detect_isolation(tmp_path) == ENFORCED


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('disable-require = false\n[nvidia-container-cli]\nldconfig = "@/sbin/ldconfig"\n', BY_ENVIRONMENT),
        ("accept-nvidia-visible-devices-envvar-when-unprivileged = true\n", BY_ENVIRONMENT),
        ("accept-nvidia-visible-devices-as-volume-mounts = true\n", BY_ENVIRONMENT),
        (
            "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
            "accept-nvidia-visible-devices-as-volume-mounts = true\n",
            BY_MOUNT,
        ),
        ("[features]\nignore-imex-channel-requests = false\n", BY_ENVIRONMENT),
        ("ignore-imex-channel-requests = true\n", BY_ENVIRONMENT),
    ],
    ids=[
        "the defaults of the package",
        "environment variables explicitly on",
        "volume mounts in addition to environment variables",
        "volume mounts only",
        "the feature is off",
        "the feature is outside of its table",
    ],
)
def test_a_toolkit_that_serves_channel_requests_opens_the_node(tmp_path: Path, config: str, reason: str) -> None:
    write(tmp_path, PACKAGE_CONFIG, config)
    assert detect_isolation(tmp_path) == Isolation(IsolationState.OPEN, reason)


@pytest.mark.parametrize(
    "config",
    [
        "[features]\nignore-imex-channel-requests = true\n",
        "accept-nvidia-visible-devices-as-volume-mounts = true\n[features]\nignore-imex-channel-requests = true\n",
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n",
    ],
    ids=["requests are ignored", "requests are ignored, mounts too", "neither variables nor mounts"],
)
def test_a_toolkit_that_ignores_channel_requests_keeps_isolation(tmp_path: Path, config: str) -> None:
    write(tmp_path, PACKAGE_CONFIG, config)
    assert detect_isolation(tmp_path) == ENFORCED


@pytest.mark.parametrize(
    "executable", ["usr/bin/nvidia-container-runtime", "usr/local/nvidia/toolkit/nvidia-container-runtime"]
)
def test_a_toolkit_without_a_configuration_file_serves_channel_requests(tmp_path: Path, executable: str) -> None:
    write(tmp_path, executable)
    assert "NVIDIA_IMEX_CHANNELS" in reason(tmp_path)


def test_one_open_toolkit_of_two_opens_the_node(tmp_path: Path) -> None:
    write(tmp_path, PACKAGE_CONFIG, "[features]\nignore-imex-channel-requests = true\n")
    write(tmp_path, OPERATOR_CONFIG)
    assert reason(tmp_path).endswith(f"in /{OPERATOR_CONFIG}")


@pytest.mark.parametrize(
    "config", ["= nonsense", "features = 1\n", "accept-nvidia-visible-devices-as-volume-mounts = 'perhaps'\n"]
)
def test_a_configuration_that_cannot_be_parsed_opens_the_node(tmp_path: Path, config: str) -> None:
    write(tmp_path, PACKAGE_CONFIG, config)
    assert reason(tmp_path).startswith(
        f"/{PACKAGE_CONFIG} cannot be read, so the NVIDIA Container Toolkit may give out channels: "
    )


CHANNEL_SPEC = """{"cdiVersion": "0.6.0", "kind": "nvidia.com/imex-channel", "devices": [{"name": "0",
"containerEdits": {"deviceNodes": [{"path": "/dev/nvidia-caps-imex-channels/channel0"}]}}]}"""


@pytest.mark.parametrize(
    "name", ["etc/cdi/nvidia.yaml", "var/run/cdi/nvidia.yaml", "var/run/cdi/nvidia.com-imex-channel.json"]
)
def test_a_cdi_spec_of_another_component_with_a_channel_opens_the_node(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, CHANNEL_SPEC)
    assert reason(tmp_path) == (
        f"/{name} offers a channel to every pod that requests its CDI device: remove the channel from it"
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("var/run/cdi/imex-dra.io-channel_1.json", CHANNEL_SPEC),
        ("var/run/cdi/nvidia.yaml", "kind: nvidia.com/gpu\ndeviceNodes: [{path: /dev/nvidia0}]\n"),
        ("var/run/cdi/notes.txt", CHANNEL_SPEC),
    ],
    ids=["our own spec", "GPUs only", "not a spec"],
)
def test_other_files_in_the_cdi_directories_keep_isolation(tmp_path: Path, name: str, content: str) -> None:
    write(tmp_path, name, content)
    assert detect_isolation(tmp_path) == ENFORCED


def test_a_world_writable_channel_on_the_host_opens_the_node(tmp_path: Path) -> None:
    write(tmp_path, "dev/nvidia-caps-imex-channels/channel7").chmod(0o666)
    assert reason(tmp_path) == (
        "/dev/nvidia-caps-imex-channels/channel7 exists on the host and is world-writable: remove it"
    )


def test_device_nodes_of_prepared_claims_keep_isolation(tmp_path: Path) -> None:
    require_mknod(tmp_path / "dev")
    edits = ChannelNodes(tmp_path).create("c1", 234, [7])
    spec = Spec("0.6.0", "imex-dra.io/channel", (Device("c1", edits),))
    write(tmp_path, "var/run/cdi/imex-dra.io-channel_c1.json", spec.encode().decode())
    assert (tmp_path / "dev/imex-dra/claims/c1/channel7").stat().st_mode & 0o002, "world-writable, but unreachable"
    assert detect_isolation(tmp_path) == ENFORCED


def test_channel_0_on_the_host_keeps_isolation_because_it_is_never_assigned(tmp_path: Path) -> None:
    """NVreg_CreateImexChannel0=1 creates it with mode 0666."""
    write(tmp_path, "dev/nvidia-caps-imex-channels/channel0").chmod(0o666)
    assert detect_isolation(tmp_path) == ENFORCED


def test_a_channel_on_the_host_that_only_root_can_open_keeps_isolation(tmp_path: Path) -> None:
    write(tmp_path, "dev/nvidia-caps-imex-channels/channel2").chmod(0o600)
    (tmp_path / "dev/nvidia-caps-imex-channels/channel1").symlink_to("nowhere")
    assert detect_isolation(tmp_path) == ENFORCED


def test_where_the_host_manages_imex_its_own_channels_open_the_node_whatever_their_mode(tmp_path: Path) -> None:
    for name in ("channel0", "channel2", "channel3"):
        write(tmp_path, f"dev/nvidia-caps-imex-channels/{name}").chmod(0o600)
    found = detect_isolation(tmp_path, host_managed=True)
    assert found.state is IsolationState.OPEN
    assert "of the host has channel2, channel3: what created them uses channels" in found.reason
    assert detect_isolation(tmp_path) == ENFORCED


def test_all_reasons_are_reported(tmp_path: Path) -> None:
    write(tmp_path, PACKAGE_CONFIG)
    write(tmp_path, "etc/cdi/nvidia.yaml", CHANNEL_SPEC)
    assert reason(tmp_path) == (
        f"{BY_ENVIRONMENT}; /etc/cdi/nvidia.yaml offers a channel to every pod that requests its CDI device:"
        " remove the channel from it"
    )
