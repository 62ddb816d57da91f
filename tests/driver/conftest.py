import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver.site import Site, Team, running_site


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    with (
        tempfile.TemporaryDirectory(prefix="imex-", dir="/tmp") as directory,
        running_site(Path(directory)) as running,
    ):
        yield running


@pytest.fixture
def nothing_stays_prepared(site: Site) -> Iterator[None]:
    """Fails the test if something does: that would be a leak."""
    yield
    site.until_nothing_prepared()


@pytest.fixture
def team(site: Site, nothing_stays_prepared: None) -> Iterator[Team]:
    yield from _visit(site)


@pytest.fixture
def neighbour(site: Site, nothing_stays_prepared: None) -> Iterator[Team]:
    """A second one."""
    yield from _visit(site)


def _visit(site: Site) -> Iterator[Team]:
    """Leaves nothing behind."""
    team = site.namespace()
    yield team
    team.delete("pods,resourceclaims,computedomains", "--all")
    site.kubectl("delete", "namespace", team.name, "--wait=false")
