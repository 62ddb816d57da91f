"""What all tests share: the real control plane, and an honest account of what could not run."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from imex_dra.sandbox.cluster.handle import Cluster, running
from imex_dra.sandbox.kubernetes import binaries
from imex_dra.sandbox.kubernetes.controlplane import ControlPlane
from imex_dra.sandbox.racks import of_racks
from tests.sandbox.account import NodeAccount

# Without this the first test that asks for a current loop makes one that nobody closes.
asyncio.set_event_loop(None)

# A shell's background jobs and nohup ignore these, and so would every program that a test starts and interrupts.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# On a busy machine an example may take long without anything being wrong.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

CRDS = Path(__file__).parent.parent / "deploy" / "crds"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(NodeAccount(), "nodes")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(LeftOut(), "left-out")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = binaries.missing()
    if missing:
        reason = f"no real Kubernetes here ({', '.join(missing)} not found): make kube builds it"
        for item in items:
            if item.get_closest_marker("kube"):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByHome(config, log)


class ByHome(LoadScopeScheduling):
    """Tests of a file share its fixtures, so they share a worker; those on our driver's site share one site, and
    those in folders called `racks`, wherever they are, one `cluster`.

    (xdist's own way, `--dist loadgroup`, has no effect with pytest 9.2.)
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if "/racks/" in file:
            return "racks"
        return "tests/driver" if file.startswith("tests/driver/") else file


class LeftOut:
    """What was skipped and why, in the very last lines, where nobody can miss it."""

    def __init__(self) -> None:
        self.reasons: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def pytest_unconfigure(self) -> None:
        for reason, count in self.reasons.items():
            sys.stdout.write(f"LEFT OUT: {count} tests: {reason}\n")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real API server, shared by the tests of a worker; a test that harms one makes its own."""
    with ControlPlane(
        tmp_path_factory.mktemp("control-plane"), users={"nobody": []}, scheduler=False, controller_manager=False
    ) as running:
        install_crds(running)
        yield running


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two simulated racks with our driver, for tests in folders called `racks`. Who harms it mends it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with running(of_racks(2, "gb200-nvl72", name=f"test-{os.getpid()}")) as started:
            yield started


def install_crds(control_plane: ControlPlane) -> None:
    documents = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
    control_plane.kubectl.apply(*documents)
    names = [f"crd/{document['metadata']['name']}" for document in documents]
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
