import shutil
from pathlib import Path

import pytest

from tests.nvml.stub import StubHost, compile_stub


def _compiled(factory: pytest.TempPathFactory, *flags: str) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc here to compile the stub of libnvidia-ml.so.1 with")
    return compile_stub(factory.mktemp("stub"), *flags)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _compiled(tmp_path_factory)


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _compiled(tmp_path_factory, "-DOLD")


@pytest.fixture
def host(tmp_path: Path, library: Path) -> StubHost:
    return StubHost(tmp_path / "host", library)
