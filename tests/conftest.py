"""Fixtures for all tests: a real control plane, simulated racks, and a report of skipped tests."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from imex_sandbox.cluster.handle import Cluster, running
from imex_sandbox.cluster.settings import KUBERNETES
from imex_sandbox.kubernetes import binaries, versions
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.embedded import EmbeddedControlPlane
from imex_sandbox.racks import of_racks
from tests.paths import DEPLOY
from tests.sandbox.kubernetes.prerequisites import NodeTests
from tests.sharedcluster import SHARED_CLUSTER, scope_of

# Otherwise the first test that asks for the current event loop creates one that is never closed.
asyncio.set_event_loop(None)

# Background jobs of a shell and nohup ignore these signals, and so would every program that a test starts.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# On a busy machine an example may take long.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

CRDS = DEPLOY / "crds"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(NodeTests(), "nodes")
    config.pluginmanager.register(SHARED_CLUSTER, "shared-cluster")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipReport(), "skip-report")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        # In a JUnit report: tools/testresults.py finds the suites in it.
        item.user_properties.append(("markers", " ".join(marker.name for marker in item.iter_markers())))
    reasons = {"kube": _missing(binaries.missing())}
    if _is_kubernetes():
        programs = _missing(binaries.missing((*binaries.SIMULATED_CLUSTER, *binaries.TOOLS)))
        reasons["racks"] = programs or ("" if _serves_racks() else _TOO_OLD_FOR_RACKS)
    for marker, reason in reasons.items():
        for item in items:
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


_TOO_OLD_FOR_RACKS = (
    "simulated racks need Kubernetes 1.36: kubectl exec over WebSockets, and the health of devices"
)


def _missing(names: Sequence[str]) -> str:
    return f"Kubernetes binaries not found: {', '.join(names)}; run make kube to build them" if names else ""


def _serves_racks() -> bool:
    return tuple(map(int, versions.selected().split("."))) >= (1, 36)


def _is_kubernetes() -> bool:
    """Of simulated racks: `imex up` reads the same variable. `make test-kube` sets it."""
    return os.environ.get("IMEX_CONTROL_PLANE") == KUBERNETES


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return SharedFixtureScheduling(config, log)


class SharedFixtureScheduling(LoadScopeScheduling):
    """Runs tests with expensive shared fixtures in the same worker: the tests of a file, of tests/driver, of
    tests/policies, and of all folders named `racks`.

    `--dist loadgroup` of xdist has no effect with pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


class SkipReport:
    """Prints the number of skipped tests by reason, in the last lines of the output."""

    def __init__(self) -> None:
        self.reasons: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def pytest_unconfigure(self) -> None:
        for reason, count in self.reasons.items():
            sys.stdout.write(f"SKIPPED: {count} tests: {reason}\n")


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A real API server for all tests of a worker. Tests that stop or reconfigure one start their own."""
    with ControlPlane(
        tmp_path_factory.mktemp("control-plane"),
        users={"unprivileged": []},
        scheduler=False,
        controller_manager=False,
    ) as running:
        install_crds(running)
        yield running


@pytest.fixture(scope="session")
def embedded_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedControlPlane]:
    """Without controllers, as `control_plane`."""
    directory = tmp_path_factory.mktemp("embedded")
    with EmbeddedControlPlane(directory, users={"unprivileged": []}, controllers=False) as running:
        install_crds(running)
        yield running


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Two simulated racks with the driver, for tests in folders named `racks`. A test repairs what it breaks."""

    @contextmanager
    def started() -> Iterator[Cluster]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
            with running(of_racks(2, "gb200-nvl72", name=f"test-{os.getpid()}")) as cluster:
                yield cluster

    return SHARED_CLUSTER.get(request, started)


def install_crds(control_plane: ControlPlane | EmbeddedControlPlane) -> None:
    documents = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
    control_plane.kubectl.apply(*documents)
    names = [f"crd/{document['metadata']['name']}" for document in documents]
    control_plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
