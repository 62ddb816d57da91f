"""The hardware of a real node: NVML's word, asked in a child process, beside what the kernel says.

A child per question, because a call into the driver may hang or crash. One that hangs in the kernel can't even be
killed: then no further one is started until it is gone, or they would pile up.
"""

import asyncio
import platform
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from imex_dra.base.waiting import ends_within
from imex_dra.cdi.spec import ContainerEdits
from imex_dra.hardware.devices import channel_major, channel_node
from imex_dra.hardware.hostroot import inside
from imex_dra.hardware.isolation import isolation
from imex_dra.hardware.kernel import read_kernel
from imex_dra.hardware.protocol import Reading
from imex_dra.hardware.report import Answer, Kernel, Report, Silent
from imex_dra.hardware.verdict import reading

LIMIT = 30.0
"""Without the persistence daemon the driver wakes every GPU first, which takes seconds each."""

_GRACE = 2.0
"""From the kill to the end of a child that is not stuck in the kernel."""

_LIBRARY = "libnvidia-ml.so.1"
_DRIVERS = ("", "run/nvidia/driver", "home/kubernetes/bin/nvidia", "usr/local/nvidia", "opt/nvidia")
"""Where a driver may be installed: on the host, by the GPU operator, by images of cloud providers."""
_DIRECTORIES = ("usr/lib64", f"usr/lib/{platform.machine()}-linux-gnu", "lib64", "usr/lib", "lib")

_DECODER: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)

_HUNG = Silent("NVML does not answer", faulty=True)


class NvmlHardware:
    """`root` is where the host's root directory is mounted."""

    def __init__(self, root: Path = Path("/"), *, limit: float = LIMIT) -> None:
        self._root = root
        self.limit = limit
        self._stuck: asyncio.subprocess.Process | None = None

    async def read(self) -> Reading:
        kernel, openness = await asyncio.to_thread(lambda: (read_kernel(self._root), isolation(self._root)))
        return reading(Report(await self._answer(kernel), kernel, openness))

    def container_edits(self, channel: int) -> ContainerEdits:
        major = channel_major(self._root / "proc/devices")
        return ContainerEdits(device_nodes=(channel_node(major, channel),))

    async def _answer(self, kernel: Kernel) -> Answer:
        if kernel.pci_gpus == 0:
            return Silent("there is no GPU to ask for", faulty=False)
        if self._stuck is not None and self._stuck.returncode is None:
            return _HUNG
        library = await asyncio.to_thread(find_library, self._root)
        if library is None:
            return Silent(f"the GPU driver is not installed: no {_LIBRARY} under {self._root}", faulty=False)
        return await self._ask(library)

    async def _ask(self, library: Path) -> Answer:
        command = (sys.executable, "-m", "imex_dra.hardware.probe", str(library), str(self.limit))
        pipe = asyncio.subprocess.PIPE
        try:
            child = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            return Silent(f"NVML can't be asked: {error.strerror}", faulty=False)
        try:
            async with asyncio.timeout(self.limit):
                said, complained = await child.communicate()
        except TimeoutError:
            return _HUNG
        finally:
            if not await _ended(child):
                self._stuck = child
        return heard(child.returncode or 0, said, complained)


def heard(code: int, said: bytes, complained: bytes) -> Answer:
    """What a child that has ended answered."""
    if code in (-signal.SIGKILL, -signal.SIGTERM):
        return Silent("NVML can't be asked: somebody killed the process that asks", faulty=False)
    if code < 0:
        return Silent(f"NVML crashed the process that asked it ({signal.Signals(-code).name})", faulty=True)
    try:
        return _DECODER.decode(said)
    except msgspec.MsgspecError:
        words = complained.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        return Silent(f"NVML can't be asked: the probe ended with exit code {code}: {words[-1]}", faulty=False)


def find_library(root: Path) -> Path | None:
    places = (f"{driver}/{directory}/{_LIBRARY}" for driver in _DRIVERS for directory in _DIRECTORIES)
    return next((found for place in places if (found := inside(root, place)).is_file()), None)


async def _ended(child: asyncio.subprocess.Process) -> bool:
    """Whether it is gone, after a kill if need be."""
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.kill()
        await ends_within(_GRACE, child.wait())
    return child.returncode is not None
