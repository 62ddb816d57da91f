import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver.site import Site, Team, running_site


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    root = Path(tempfile.mkdtemp(prefix="imex-", dir="/tmp"))
    with running_site(root) as running:
        yield running
    shutil.rmtree(root)


@pytest.fixture
def team(site: Site) -> Iterator[Team]:
    """Leaves nothing behind, and fails the test if something stays: that would be a leak."""
    team = site.namespace()
    yield team
    team.delete("pods,resourceclaims,computedomains", "--all")
    site.until_nothing_prepared()
    site.kubectl("delete", "namespace", team.name, "--wait=false")
