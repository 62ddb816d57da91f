"""Where the demo takes place: a cluster started for it, watched from its first moment, and always ended."""

import asyncio
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from imex_dra.api.meta import is_deleting
from imex_dra.api.views import ResourceClaim
from imex_dra.base.errors import Misconfigured, NotYet, Rejected, Unavailable
from imex_dra.kube.client import Client
from imex_dra.picture.observed import Observed
from imex_dra.picture.watching import Watching
from imex_dra.sandbox import racks
from imex_dra.sandbox.cluster.handle import command, is_ready
from imex_dra.sandbox.cluster.hold import free, holder
from imex_dra.sandbox.cluster.places import Places
from imex_dra.sandbox.demo.report import Check
from imex_dra.sandbox.demo.workloads import Json
from imex_dra.sandbox.kubernetes.binaries import find
from imex_dra.sandbox.kubernetes.kubectl import in_yaml
from imex_dra.sandbox.process import Process

_LOOK = 0.1


class Venue:
    def __init__(self, spec: racks.Cluster) -> None:
        self.places = Places(spec.name)
        self.watching = Watching()
        self.claims: dict[str, ResourceClaim] = {}
        """Every claim as it last was while a pod had it reserved, for those that are gone by now."""
        self.running = False
        self._spec = spec
        self._file = self.places.state.with_name(f"{spec.name}.yaml")
        self._log = self.places.state.with_name(f"{spec.name}.log")
        self._process = Process("imex up", command(self._file), log=self._log)
        self.watching.claims.subscribe(lambda old, new: self._remember(new))

    def start(self) -> None:
        """From the main thread: the cluster is bound to it."""
        if pid := holder(self._spec.name):
            name = self._spec.name
            raise Misconfigured(f"a cluster {name} runs already (pid {pid}): `imex down --name {name}` ends it")
        self.places.state.parent.mkdir(parents=True, exist_ok=True)
        self.places.kubeconfig.unlink(missing_ok=True)
        self._log.unlink(missing_ok=True)
        self._file.write_bytes(msgspec.yaml.encode(self._spec))
        self._process.start()
        self.running = True

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """While the block runs, `watching` shows what the API server says, as soon as there is one."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _watch(self) -> None:
        while not self.places.kubeconfig.exists():  # noqa: ASYNC110 - a file says nothing when it appears
            await asyncio.sleep(_LOOK)
        client = Client.connect("imex-cli", self.places.kubeconfig)
        try:
            await self.watching.run(client)
        finally:
            await client.close()

    async def until_ready(self, within: float) -> None:
        try:
            async with asyncio.timeout(within):
                while not is_ready(self._spec.name):
                    if not self._process.running:
                        raise Unavailable(f"the cluster did not start: {self._last_line()}")
                    await asyncio.sleep(_LOOK)
        except TimeoutError:
            raise NotYet(f"the cluster was not ready within {within:.0f} s") from None

    async def settled(self, found: Callable[[Observed], list[Check]], within: float) -> list[Check]:
        """The checks once all of them are good, or as they are when the time is over."""
        await self.watching.until(lambda observed: all(check.ok for check in found(observed)), within=within)
        return found(self.watching.observed())

    async def ask(self, *words: str, stdin: str = "", within: float = 60) -> str:
        """What kubectl prints; whoever does not want to wait for it any longer ends it."""
        kubectl = await asyncio.create_subprocess_exec(
            find("kubectl"),
            *words,
            env=os.environ | {"KUBECONFIG": str(self.places.kubeconfig)},
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        try:
            out, problem = await asyncio.wait_for(kubectl.communicate(stdin.encode()), within)
        except TimeoutError:
            raise NotYet(f"kubectl {' '.join(words)}: no answer within {within:.0f} s") from None
        finally:
            if kubectl.returncode is None:
                kubectl.kill()
                await kubectl.wait()
        if kubectl.returncode:
            raise Rejected(f"kubectl {' '.join(words)}: {problem.decode().strip()}")
        return out.decode()

    async def apply(self, *documents: Json) -> None:
        await self.ask("apply", "-f", "-", stdin=in_yaml(*documents))

    async def why(self, namespace: str, pod: str) -> str:
        """The last thing that Kubernetes said of a pod."""
        about = f"--field-selector=involvedObject.name={pod}"
        notes = await self.ask(
            "-n", namespace, "get", "events", about, "-o", r'jsonpath={range .items[*]}{.message}{"\n"}'
        )
        return notes.strip().rpartition("\n")[2] or "nothing was said of it"

    async def until_empty(self, within: float) -> list[str]:
        """The CDI specs that are left on nodes when there are none any more, or when the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._specs():  # noqa: ASYNC110 - files say nothing when they go
                    await asyncio.sleep(_LOOK)
        return self._specs()

    def _specs(self) -> list[str]:
        return sorted(str(path.relative_to(self.places.run)) for path in self.places.run.glob("*/run/cdi/*.json"))

    def ended(self) -> str:
        """Why it can't go on, though nobody stopped it; empty while it can."""
        gone = self.running and not self._process.running
        return f"the cluster ended unexpectedly: {self._last_line()}" if gone else ""

    async def stop(self) -> list[Check]:
        """Ends everything, and tells whether anything was left."""
        self.running = False
        return await asyncio.to_thread(self._stop)

    def _stop(self) -> list[Check]:
        self._process.stop(within=60)
        gone = free(self._spec.name, 60)
        self._file.unlink(missing_ok=True)
        if self._log.exists():
            self.places.logs.mkdir(parents=True, exist_ok=True)
            self._log.rename(self.places.logs / "imex-up.log")
        left = [str(path) for path in (self.places.run, self.places.kubeconfig) if path.exists()]
        return [
            Check("no process of the cluster is left", gone),
            Check("no file of the cluster is left, but logs", not left, ", ".join(left)),
        ]

    def keep(self, name: str, content: str) -> Path:
        """Beside the other logs."""
        self.places.logs.mkdir(parents=True, exist_ok=True)
        path = self.places.logs / name
        path.write_text(content)
        return path

    def _remember(self, claim: ResourceClaim | None) -> None:
        if claim is not None and claim.pods and not is_deleting(claim):
            self.claims[claim.metadata.uid] = claim

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        return lines[-1].removeprefix("imex: ") if lines else "it said nothing"
