import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.faults.fakecluster import FakeCluster, running_fake_cluster


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with running_fake_cluster(f"fake-{uuid.uuid4().hex[:8]}") as fake:
        yield fake
        shutil.rmtree(fake.paths.run)
