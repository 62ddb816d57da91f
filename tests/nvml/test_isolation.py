from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imex_dra.api.nvlinknode import IsolationState
from imex_dra.hardware.isolation import ToolkitConfig, isolation, loophole

PACKAGED = "etc/nvidia-container-runtime/config.toml"
OPERATOR = "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"
BY_ENVIRONMENT = "accept-nvidia-visible-devices-envvar-when-unprivileged"
BY_MOUNT = "accept-nvidia-visible-devices-as-volume-mounts"
IGNORING = "[features]\nignore-imex-channel-requests = true\n"
CHANNELS = "dev/nvidia-caps-imex-channels"


def write(root: Path, name: str, content: str = "") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def opened(root: Path) -> str:
    """Why it is open; empty if it is not."""
    found = isolation(root)
    assert bool(found.reason) == (found.state is IsolationState.OPEN)
    return found.reason


def test_a_host_with_nothing_of_the_kind_is_closed(tmp_path: Path) -> None:
    assert not opened(tmp_path)


@pytest.mark.parametrize("place", [PACKAGED, OPERATOR])
def test_a_toolkit_with_its_defaults_believes_every_container(tmp_path: Path, place: str) -> None:
    write(tmp_path, place, "[nvidia-container-cli]\nldconfig = '@/sbin/ldconfig'\n")
    assert "NVIDIA_IMEX_CHANNELS" in opened(tmp_path)
    assert f"/{place}" in opened(tmp_path)


def test_a_toolkit_without_a_configuration_has_its_defaults(tmp_path: Path) -> None:
    write(tmp_path, "usr/bin/nvidia-container-runtime")
    assert "NVIDIA_IMEX_CHANNELS" in opened(tmp_path)


def test_a_toolkit_that_takes_device_lists_from_mounts_takes_channels_too(tmp_path: Path) -> None:
    write(tmp_path, PACKAGED, f"{BY_ENVIRONMENT} = false\n{BY_MOUNT} = true\n")
    assert "mounts" in opened(tmp_path)


@pytest.mark.parametrize("content", [IGNORING, f"{BY_ENVIRONMENT} = false\n", f"{BY_MOUNT} = true\n{IGNORING}"])
def test_a_toolkit_that_is_told_not_to_is_closed(tmp_path: Path, content: str) -> None:
    write(tmp_path, PACKAGED, content)
    assert not opened(tmp_path)


def test_one_open_toolkit_of_two_is_enough(tmp_path: Path) -> None:
    write(tmp_path, PACKAGED, IGNORING)
    write(tmp_path, OPERATOR)
    assert f"/{OPERATOR}" in opened(tmp_path)


@pytest.mark.parametrize("content", ["= nonsense", "features = 1\n", f"{BY_MOUNT} = 'perhaps'\n"])
def test_what_can_not_be_checked_is_not_claimed(tmp_path: Path, content: str) -> None:
    write(tmp_path, PACKAGED, content)
    assert "can't be read" in opened(tmp_path)


@given(st.builds(ToolkitConfig, from_environment=st.booleans(), from_mounts=st.booleans()))
def test_a_loophole_is_one_of_the_two_switches(config: ToolkitConfig) -> None:
    assert bool(loophole(config)) == (config.from_environment or config.from_mounts)


@pytest.mark.parametrize("name", ["etc/cdi/nvidia.yaml", "var/run/cdi/nvidia.com-imex-channel.json"])
def test_a_cdi_device_of_somebody_else_is_there_for_every_pod(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, "deviceNodes: [{path: /dev/nvidia-caps-imex-channels/channel0}]")
    assert f"/{name}" in opened(tmp_path)


def test_our_own_specs_and_those_without_channels_open_nothing(tmp_path: Path) -> None:
    write(tmp_path, "var/run/cdi/imex-dra.io-channel_1.json", "/dev/nvidia-caps-imex-channels/channel1")
    write(tmp_path, "var/run/cdi/nvidia.yaml", "deviceNodes: [{path: /dev/nvidia0}]")
    assert not opened(tmp_path)


def test_a_device_node_for_everybody_is_open(tmp_path: Path) -> None:
    write(tmp_path, f"{CHANNELS}/channel0").chmod(0o666)
    assert "channel0 exists on the host" in opened(tmp_path)


def test_a_device_node_for_root_alone_is_closed(tmp_path: Path) -> None:
    write(tmp_path, f"{CHANNELS}/channel0").chmod(0o600)
    (tmp_path / CHANNELS / "channel1").symlink_to("nowhere")
    assert not opened(tmp_path)
