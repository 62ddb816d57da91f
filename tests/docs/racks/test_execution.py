"""The commands of the documentation, on two simulated racks: those of pages for laptops on the embedded control
plane and on a real one, those of all other pages on a real one.

Each page has a namespace and a directory of its own, with the files of its directory and the examples.
"""

import asyncio
import json
import os
import re
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from imex_dra.diagnose.cluster import Cluster as DiagnosedCluster
from imex_dra.diagnose.loading import load_cluster
from imex_dra.diagnose.rule import Finding
from imex_dra.diagnose.rules import diagnose
from imex_dra.diagnose.snapshot import Snapshot
from imex_dra.kube.client import Client
from imex_sandbox.cluster.handle import Cluster
from imex_sandbox.faults.injector import Injector
from tests.docs.pages import ALL_BLOCKS, Block
from tests.docs.running import FOR_LAPTOPS, NAMESPACE, RUN_PAGES, Step, files, fits, is_run, steps
from tests.paths import ROOT
from tests.sandbox.cluster.namespace import TIMEOUT, Namespace, until

pytestmark = [pytest.mark.racks, pytest.mark.timeout(600)]

FOR_CLUSTERS = (pytest.mark.kube, pytest.mark.slow)


class PageRunner:
    def __init__(self, namespace: Namespace, directory: Path, page: Path) -> None:
        self._namespace = namespace
        self._directory = directory
        for source in (*page.parent.iterdir(), ROOT / "examples", ROOT / "deploy"):
            if not (directory / source.name).exists():
                (directory / source.name).symlink_to(source)
        for name, text in files(page).items():
            (directory / name).write_text(self._own(text))
        cluster = namespace.cluster
        config = json.loads(cluster.kubeconfig.read_text())
        config["contexts"][0]["context"]["namespace"] = namespace.name
        kubeconfig = directory / ".kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "IMEX_NAME": cluster.name}

    def run(self, block: Block) -> None:
        for step in steps(block):
            # A command that reads shows sooner or later what the page shows; others are run once.
            deadline = time.monotonic() + (TIMEOUT if step.reads else 0)
            while not fits(step.expected or "…", seen := self._run_once(step, block)):
                assert time.monotonic() < deadline, f"{block}: {step.command}\n{step.expected}\nnot:\n{seen}"
                time.sleep(0.5)

    def _run_once(self, step: Step, block: Block) -> str:
        """What it prints."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self._own(step.command)],
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # as at a terminal
            text=True,
            timeout=300,
            check=False,
        )
        assert step.may_exit_with(done.returncode), f"{block}: {step.command}\n{done}"
        return done.stdout.replace(self._namespace.name, NAMESPACE)

    def _own(self, text: str) -> str:
        return re.sub(rf"\b{NAMESPACE}\b", self._namespace.name, text)


def findings(cluster: Cluster) -> list[Finding]:
    async def read() -> Snapshot:
        client = Client.connect("imex-cli", cluster.kubeconfig)
        try:
            return await load_cluster(client)
        finally:
            await client.close()

    return diagnose(DiagnosedCluster(asyncio.run(read())))


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    # Another test, or page, may have broken a node a moment ago.
    until(cluster, lambda: not findings(cluster))
    # As long as the name in the pages, so that lines are wrapped at the same places.
    made = Namespace(cluster, f"t{uuid.uuid4().hex[: len(NAMESPACE) - 1]}")
    yield made
    injector = Injector(cluster)
    for fault in injector.active():
        injector.undo(fault.id)
    made.kubectl("delete", "jobs,pods", "--all", "--grace-period=1", "--wait=false")
    made.delete_all()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=() if page in FOR_LAPTOPS else FOR_CLUSTERS)
        for page in RUN_PAGES
    ],
)
def test_the_commands_of_a_page_work(page: Path, namespace: Namespace, tmp_path: Path) -> None:
    runner = PageRunner(namespace, tmp_path, page)
    for block in ALL_BLOCKS:
        if block.page == page and is_run(block):
            runner.run(block)
