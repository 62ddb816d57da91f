"""Starts the containers of one pod: an order is made, the runtime carries it out, and both are told of."""

from imex_dra.base.errors import ImexError
from imex_dra.sandbox.kubelet.containers import Sandbox
from imex_dra.sandbox.kubelet.environment import ConfigError
from imex_dra.sandbox.kubelet.parts import Parts
from imex_dra.sandbox.kubelet.runs import StartFailed, Waiting
from imex_dra.sandbox.kubelet.views.container import Container
from imex_dra.sandbox.kubelet.views.pod import Pod


class Starter:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.waiting: dict[str, Waiting] = {}
        """What keeps a container from being made."""

    async def start(self, pod: Pod, name: str, sandbox: Sandbox) -> bool:
        """False if it could not be made. One whose command could not run has run, and ended at once."""
        container = next(c for c in pod.spec.every_container if c.name == name)
        try:
            await self._start(pod, container, sandbox)
        except ImexError as error:
            self._parts.events.warn(pod, "Failed", f"Error: {error}", container=name)
            if not isinstance(error, StartFailed):
                self.waiting[name] = Waiting(_reason(error), str(error))
                return False
        else:
            self._parts.events.note(pod, "Started", "Container started", container=name)
        self.waiting.pop(name, None)
        return True

    async def _start(self, pod: Pod, container: Container, sandbox: Sandbox) -> None:
        order = await self._parts.desk.order(pod, container, sandbox)
        self._parts.events.note(pod, "Created", "Container created", container=container.name)
        await self._parts.runtime.start(sandbox, order)


def _reason(error: ImexError) -> str:
    return "CreateContainerConfigError" if isinstance(error, ConfigError) else "CreateContainerError"
