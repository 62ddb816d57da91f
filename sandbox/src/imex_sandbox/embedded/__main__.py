"""The process of the embedded control plane. Its settings are a file:

python -m imex_sandbox.embedded settings.json
"""

import asyncio
import signal
import sys
from pathlib import Path

import msgspec

from imex_sandbox.embedded import mpijobs
from imex_sandbox.embedded.controllers import Controllers
from imex_sandbox.embedded.server import serving
from imex_sandbox.embedded.settings import Settings


async def run(settings: Settings) -> None:
    """Until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with serving(settings) as api:
        controllers = None
        if settings.controllers:
            mpijobs.install(api.objects)
            controllers = asyncio.create_task(Controllers(api.objects).run())
        await stopped.wait()
        if controllers is not None:
            controllers.cancel()


if __name__ == "__main__":
    asyncio.run(run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings)))
