import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.paper import Paper, paper_cluster


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Paper]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with paper_cluster(f"paper-{uuid.uuid4().hex[:8]}") as paper:
        yield paper
        shutil.rmtree(paper.places.run)
