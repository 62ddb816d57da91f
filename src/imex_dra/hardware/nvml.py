"""The hardware of a real node: NVML, called in a child process, and the files of the kernel.

Each reading starts a child, because a call into the driver can hang or crash. A child that hangs inside the kernel
cannot even be killed; no other child is started until it is gone, or they would accumulate.
"""

import asyncio
import signal
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import structs

from imex_dra.api.names import IMEX_DIRECTORY, IMEX_PORTS
from imex_dra.api.nvlinknode import FabricState
from imex_dra.base.waiting import wait_or_cancel
from imex_dra.cdi.spec import ContainerEdits
from imex_dra.hardware.capability import ensure_capability_node
from imex_dra.hardware.channelnodes import ChannelNodes
from imex_dra.hardware.driverroot import NVML, find_driver_root, find_library, host_imex_problem, imex_problem
from imex_dra.hardware.host import channel_major, read_kernel
from imex_dra.hardware.isolation import detect_isolation
from imex_dra.hardware.protocol import Reading
from imex_dra.hardware.report import KernelInfo, NvmlResult, NvmlUnavailable, Report
from imex_dra.hardware.verdict import evaluate

PROBE = Path(__file__).with_name("probe.py")
TIMEOUT = 30.0
"""Without nvidia-persistenced the driver initializes every GPU first, which takes seconds for each."""

_KILL_TIMEOUT = 2.0
"""Seconds until a killed child counts as stuck in the kernel."""

_RESULT_DECODER: msgspec.json.Decoder[NvmlResult] = msgspec.json.Decoder(NvmlResult)

_HUNG = NvmlUnavailable(
    "NVML does not answer: the GPU driver hangs; check the node's kernel log for NVRM and Xid messages",
    driver_fault=True,
)


class NvmlHardware:
    """`root` is where the host's root directory is mounted. `driver_root` is a path on the host; if it is empty,
    it is found at each reading, because the driver may be installed later, or be replaced. `host_managed`: the
    host runs nvidia-imex. `ports` are those that nvidia-imex needs in the host's network.
    """

    period = 10.0  # each reading starts a process

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        driver_root: str = "",
        imex_directory: Path = Path(IMEX_DIRECTORY),
        host_managed: bool = False,
        ports: Collection[int] = IMEX_PORTS,
        timeout: float = TIMEOUT,
    ) -> None:
        self.root = root
        self._driver_root = driver_root
        self._imex_directory = imex_directory
        self._host_managed = host_managed
        self._ports = ports
        self.timeout = timeout
        self._nodes = ChannelNodes(root)
        self._hung_probe: asyncio.subprocess.Process | None = None

    async def read(self) -> Reading:
        kernel = await asyncio.to_thread(read_kernel, self.root)
        isolation = await asyncio.to_thread(detect_isolation, self.root, host_managed=self._host_managed)
        reading = evaluate(Report(await self._query_nvml(kernel), kernel, isolation))
        if reading.fabric.state is not FabricState.OK:
            return reading
        # Only where a daemon is to run. One that runs needs neither the node of the capability nor its program
        # again, so the fabric stays ok.
        return await asyncio.to_thread(self._with_driver_root, reading)

    def _with_driver_root(self, reading: Reading) -> Reading:
        if self._host_managed:  # nothing is created: the host has what its nvidia-imex needs
            return structs.replace(reading, imex_problem=host_imex_problem(self.root, self._driver_root or "/"))
        driver_root = find_driver_root(self.root, self._driver_root)
        problem = imex_problem(self.root, driver_root, reading.driver_version, self._imex_directory, self._ports)
        capability = ensure_capability_node(self.root)
        return structs.replace(reading, driver_root=driver_root, imex_problem=problem or capability)

    def container_edits(self, claim_uid: str, channels: Sequence[int]) -> ContainerEdits:
        return self._nodes.create(claim_uid, channel_major(self.root / "proc/devices"), channels)

    def remove_devices(self, claim_uid: str) -> None:
        self._nodes.remove(claim_uid)

    def claims_with_devices(self) -> set[str]:
        return self._nodes.claims()

    async def _query_nvml(self, kernel: KernelInfo) -> NvmlResult:
        if kernel.pci_gpus == 0:
            return NvmlUnavailable("the node has no NVIDIA GPU", driver_fault=False)
        if self._hung_probe is not None and self._hung_probe.returncode is None:
            return _HUNG
        library = await asyncio.to_thread(find_library, self.root, self._driver_root)
        if library is None:
            return NvmlUnavailable(
                f"the GPU driver is not installed: there is no {NVML} under {self.root}", driver_fault=False
            )
        return await self._run_probe(library)

    async def _run_probe(self, library: Path) -> NvmlResult:
        # By its path, alone and without site-packages: it needs none of our modules.
        command = (sys.executable, "-I", "-S", str(PROBE), str(library), str(self.timeout))
        pipe = asyncio.subprocess.PIPE
        try:
            child = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            return NvmlUnavailable(f"the NVML probe cannot be started: {error.strerror}", driver_fault=False)
        try:
            async with asyncio.timeout(self.timeout):
                stdout, stderr = await child.communicate()
        except TimeoutError:
            return _HUNG
        finally:
            if not await _kill(child):
                self._hung_probe = child
        return parse_probe_output(child.returncode or 0, stdout, stderr)


def parse_probe_output(exit_code: int, stdout: bytes, stderr: bytes) -> NvmlResult:
    # The kernel's OOM killer and administrators kill processes, the driver does not.
    if exit_code in (-signal.SIGKILL, -signal.SIGTERM):
        name = signal.Signals(-exit_code).name
        return NvmlUnavailable(f"the NVML probe was killed ({name})", driver_fault=False)
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        return NvmlUnavailable(f"NVML crashed the process that called it ({name})", driver_fault=True)
    try:
        return _RESULT_DECODER.decode(stdout)
    except msgspec.MsgspecError:
        lines = stderr.decode(errors="replace").strip().splitlines() or ["no error output"]
        return NvmlUnavailable(
            f"the NVML probe failed with exit code {exit_code}: {lines[-1]}", driver_fault=False
        )


async def _kill(child: asyncio.subprocess.Process) -> bool:
    """False if the child, although killed, still exists."""
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.kill()
        await wait_or_cancel(_KILL_TIMEOUT, child.wait())
    return child.returncode is not None
