"""A driver that is not there: a stub of its library, compiled here, and the kernel files it would bring."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

SOURCE = Path(__file__).with_name("stub.c")
CLUSTER = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"
NO_CLUSTER = "00000000-0000-0000-0000-000000000000"
VERSION = "580.95.05"
BOOT = "1c6b7ee8-45f8-4b26-9c0b-9c3d7a1b6f4e"
HEALTHY = 0x51AA
"""No trouble, no mistake in the configuration, a partition assigned, the fabric manager connected."""

NOT_SUPPORTED, NOT_STARTED, IN_PROGRESS, COMPLETED = range(4)


class StubGpu(Struct, frozen=True):
    state: int = COMPLETED
    status: int = 0
    cluster: str = CLUSTER
    clique: int = 7
    mask: int = HEALTHY
    summary: int = 1

    def line(self) -> str:
        cluster = self.cluster.replace("-", "")
        return f"gpu {self.state} {self.status} {cluster} {self.clique} {self.mask:#x} {self.summary}"


def compile_stub(directory: Path, *flags: str) -> Path:
    library = directory / "libnvidia-ml.so.1"
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-null-dereference", *flags, str(SOURCE)]
    subprocess.run([*command, "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library)], check=True, timeout=60)
    return library


class StubHost:
    """A host's root directory with a driver in it, and as many GPUs on the PCI bus as NVML is told to see."""

    def __init__(self, root: Path, library: Path | None) -> None:
        self.root = root
        self._script = root / "usr/lib64/nvml.script"
        self._script.parent.mkdir(parents=True)
        if library is not None:
            shutil.copy(library, self._script.parent)
        self.write(
            "proc/devices", "Character devices:\n  1 mem\n234 nvidia-caps-imex-channels\n\nBlock devices:\n"
        )
        self.write("proc/driver/nvidia/params", "ResmanDebugLevel: 4294967295\nImexChannelCount: 2048\n")
        self.write("proc/driver/nvidia/capabilities/fabric-imex-mgmt", "DeviceFileMinor: 3\n")
        self.write("proc/sys/kernel/random/boot_id", f"{BOOT}\n")
        self.gpus(StubGpu(), StubGpu(), StubGpu(), StubGpu())

    def gpus(self, *gpus: StubGpu, on_pci: int | None = None, also: Iterable[str] = ()) -> None:
        """`also`: further lines of the script."""
        self._script.write_text("\n".join([f"driver {VERSION}", *(gpu.line() for gpu in gpus), *also, ""]))
        shutil.rmtree(self.root / "sys", ignore_errors=True)
        self.pci_device("0000:00:1f.0", vendor="0x8086", kind="0x060100")
        self.pci_device("0000:01:00.0", vendor="0x10de", kind="0x068000")
        for index in range(len(gpus) if on_pci is None else on_pci):
            self.pci_device(f"{index:04x}:02:00.0", vendor="0x10de", kind="0x030200")

    def pci_device(self, name: str, *, vendor: str, kind: str) -> Path:
        self.write(f"sys/bus/pci/devices/{name}/vendor", f"{vendor}\n")
        return self.write(f"sys/bus/pci/devices/{name}/class", f"{kind}\n").parent

    def write(self, name: str, content: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path
