import shutil
from pathlib import Path

import pytest

from tests.nvml.stub import StubHost, compile_stub


def _compile(factory: pytest.TempPathFactory, *flags: str) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc, which compiles the stub of libnvidia-ml.so.1, is not installed")
    return compile_stub(factory.mktemp("stub"), *flags)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _compile(tmp_path_factory)


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _compile(tmp_path_factory, "-DOLD")


@pytest.fixture
def host(tmp_path: Path, library: Path) -> StubHost:
    return StubHost(tmp_path / "host", library)
