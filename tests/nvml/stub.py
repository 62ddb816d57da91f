"""A stub of the GPU driver: a libnvidia-ml.so.1 that follows a script, and the kernel files of a real driver."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

SOURCE = Path(__file__).with_name("stub.c")
CLUSTER_UUID = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"
ZERO_UUID = "00000000-0000-0000-0000-000000000000"
VERSION = "580.95.05"
BOOT_ID = "1c6b7ee8-45f8-4b26-9c0b-9c3d7a1b6f4e"
HEALTHY = 0x51AA
"""Every field reported, and every one good: a partition is assigned and the fabric manager is connected."""

CAPABILITY = "DeviceFileMinor: 3\nDeviceFileMode: 256\nDeviceFileModify: 1\n"

NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = range(4)


class StubGpu(Struct, frozen=True):
    state: int = COMPLETED
    status: int = 0
    cluster_uuid: str = CLUSTER_UUID
    clique: int = 7
    health_mask: int = HEALTHY
    health_summary: int = 1

    def script_line(self) -> str:
        cluster_uuid = self.cluster_uuid.replace("-", "")
        health = f"{self.health_mask:#x} {self.health_summary}"
        return f"gpu {self.state} {self.status} {cluster_uuid} {self.clique} {health}"


def compile_stub(directory: Path, *flags: str) -> Path:
    library = directory / "libnvidia-ml.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-null-dereference", *flags, str(SOURCE)]
    subprocess.run([*command, "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library)], check=True, timeout=60)
    return library


class StubHost:
    """The root directory of a host with a GPU driver. By default the PCI bus has as many GPUs as NVML lists."""

    def __init__(self, root: Path, library: Path | None) -> None:
        self.root = root
        self._script = root / "usr/lib64/nvml.script"
        self._script.parent.mkdir(parents=True)
        if library is not None:
            shutil.copy(library, self._script.parent)
        self.write(
            "proc/devices",
            "Character devices:\n  1 mem\n233 nvidia-caps\n234 nvidia-caps-imex-channels\n\nBlock devices:\n",
        )
        self.write("proc/driver/nvidia/params", "ResmanDebugLevel: 4294967295\nImexChannelCount: 2048\n")
        self.write("proc/driver/nvidia/capabilities/fabric-imex-mgmt", CAPABILITY)
        (root / "dev").mkdir()
        for program in ("nvidia-imex", "nvidia-imex-ctl"):
            self.write(f"usr/bin/{program}", "#!/bin/sh\n")
        self.write("proc/sys/kernel/random/boot_id", f"{BOOT_ID}\n")
        self.gpus(StubGpu(), StubGpu(), StubGpu(), StubGpu())

    def gpus(self, *gpus: StubGpu, on_pci: int | None = None, extra: Iterable[str] = ()) -> None:
        """`extra` are further lines of the script; stub.c explains them."""
        self._script.write_text("\n".join([f"driver {VERSION}", *(gpu.script_line() for gpu in gpus), *extra, ""]))
        shutil.rmtree(self.root / "sys", ignore_errors=True)
        self.pci_device("0000:00:1f.0", vendor="0x8086", pci_class="0x060100")
        self.pci_device("0000:01:00.0", vendor="0x10de", pci_class="0x068000")
        for index in range(len(gpus) if on_pci is None else on_pci):
            self.pci_device(f"{index:04x}:02:00.0", vendor="0x10de", pci_class="0x030200")

    def pci_device(self, name: str, *, vendor: str, pci_class: str) -> Path:
        self.write(f"sys/bus/pci/devices/{name}/vendor", f"{vendor}\n")
        return self.write(f"sys/bus/pci/devices/{name}/class", f"{pci_class}\n").parent

    def write(self, name: str, content: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path
