"""The cluster of the demo: started for it, watched from the beginning, and always stopped at the end."""

import asyncio
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import msgspec

from imex_dra.api.meta import is_deleting
from imex_dra.api.views import ResourceClaim
from imex_dra.base.errors import NotYet, Rejected, Unavailable
from imex_dra.kube.client import Client
from imex_dra.picture.snapshot import Snapshot
from imex_dra.picture.watcher import ClusterWatcher
from imex_sandbox import racks
from imex_sandbox.cluster.handle import command, is_ready
from imex_sandbox.cluster.lock import already_running, is_locked, wait_until_unlocked
from imex_sandbox.cluster.paths import ClusterPaths
from imex_sandbox.demo.report import Check
from imex_sandbox.demo.workloads import Json
from imex_sandbox.kubernetes.binaries import find
from imex_sandbox.kubernetes.kubectl import to_yaml
from imex_sandbox.process import Process

_PERIOD = 0.1


class DemoCluster:
    def __init__(self, spec: racks.Cluster, control_plane: str) -> None:
        self.paths = ClusterPaths(spec.name)
        self.watching = ClusterWatcher()
        self.claims: dict[str, ResourceClaim] = {}
        """Each claim, by UID, as it was while it was last reserved. Includes claims that no longer exist."""
        self.running = False
        self._spec = spec
        self._file = self.paths.state.with_name(f"{spec.name}.yaml")
        self._log = self.paths.state.with_name(f"{spec.name}.log")
        self._process = Process("imex up", command(self._file, f"--control-plane={control_plane}"), log=self._log)
        self.watching.claims.subscribe(lambda old, new: self._remember(new))

    def start(self) -> None:
        """Call this from the main thread: the cluster dies with the thread that started it."""
        if is_locked(self._spec.name):
            raise already_running(self._spec.name)
        self.paths.state.parent.mkdir(parents=True, exist_ok=True)
        self.paths.kubeconfig.unlink(missing_ok=True)
        self._log.unlink(missing_ok=True)
        self._file.write_bytes(msgspec.yaml.encode(self._spec))
        self._process.start()
        self.running = True

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Keep `watching` up to date in the block, from the moment that the API server answers."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _watch(self) -> None:
        while not self.paths.kubeconfig.exists():  # noqa: ASYNC110 - there is no event for a file that appears
            await asyncio.sleep(_PERIOD)
        client = Client.connect("imex-cli", self.paths.kubeconfig)
        try:
            await self.watching.run(client)
        finally:
            await client.close()

    async def wait_until_ready(self, within: float) -> None:
        try:
            async with asyncio.timeout(within):
                while not is_ready(self._spec.name):
                    if not self._process.running:
                        raise Unavailable(f"the cluster did not start: {self._last_log_line()}")
                    await asyncio.sleep(_PERIOD)
        except TimeoutError:
            raise NotYet(f"the cluster was not ready within {within:.0f} s") from None

    async def wait_for_checks(self, checks: Callable[[Snapshot], list[Check]], within: float) -> list[Check]:
        """Return the checks when all of them pass, or their last results when the time is over."""
        await self.watching.until(lambda observed: all(check.ok for check in checks(observed)), within=within)
        return checks(self.watching.snapshot())

    async def kubectl(self, *arguments: str, stdin: str = "", within: float = 60) -> str:
        """Return the output of kubectl. It is killed if this coroutine is cancelled."""
        process = await asyncio.create_subprocess_exec(
            find("kubectl"),
            *arguments,
            env=os.environ | {"KUBECONFIG": str(self.paths.kubeconfig)},
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(stdin.encode()), within)
        except TimeoutError:
            raise NotYet(f"kubectl {' '.join(arguments)}: no answer within {within:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise Rejected(f"kubectl {' '.join(arguments)}: {errors.decode().strip()}")
        return output.decode()

    async def apply(self, *documents: Json) -> None:
        await self.kubectl("apply", "-f", "-", stdin=to_yaml(*documents))

    async def last_event(self, namespace: str, pod: str) -> str:
        """The message of the last event of a pod."""
        selector = f"--field-selector=involvedObject.name={pod}"
        messages = await self.kubectl(
            "-n", namespace, "get", "events", selector, "-o", r'jsonpath={range .items[*]}{.message}{"\n"}'
        )
        return messages.strip().rpartition("\n")[2] or "it has no events"

    async def wait_until_unprepared(self, within: float) -> list[str]:
        """Return the CDI specs that are left on nodes when the time is over; none if all go earlier."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._cdi_specs():  # noqa: ASYNC110 - there is no event for a file that is removed
                    await asyncio.sleep(_PERIOD)
        return self._cdi_specs()

    def _cdi_specs(self) -> list[str]:
        return sorted(str(path.relative_to(self.paths.run)) for path in self.paths.run.glob("*/run/cdi/*.json"))

    def failure(self) -> str:
        """Why the cluster ended, if `stop` was not called; empty while it runs."""
        ended = self.running and not self._process.running
        return f"the cluster ended unexpectedly: {self._last_log_line()}" if ended else ""

    async def stop(self) -> list[Check]:
        """Stop the cluster, and check that nothing is left of it."""
        self.running = False
        return await asyncio.to_thread(self._stop)

    def _stop(self) -> list[Check]:
        self._process.stop(within=60)
        unlocked = wait_until_unlocked(self._spec.name, 60)
        self._file.unlink(missing_ok=True)
        if self._log.exists():
            self.paths.logs.mkdir(parents=True, exist_ok=True)
            self._log.rename(self.paths.logs / "imex-up.log")
        left = [str(path) for path in (self.paths.run, self.paths.kubeconfig) if path.exists()]
        return [
            Check("no process of the cluster is left", unlocked),
            Check("no file of the cluster is left, except logs", not left, ", ".join(left)),
        ]

    def write_log(self, name: str, content: str) -> None:
        self.paths.logs.mkdir(parents=True, exist_ok=True)
        (self.paths.logs / name).write_text(content)

    def _remember(self, claim: ResourceClaim | None) -> None:
        if claim is not None and claim.pods and not is_deleting(claim):
            self.claims[claim.metadata.uid] = claim

    def _last_log_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return lines[-1].removeprefix("imex: ") if lines else "its log is empty"
