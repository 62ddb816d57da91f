"""Marks for tests of what only newer versions of Kubernetes have. The page of compatibility lists the reasons."""

import pytest

from imex_sandbox.kubernetes import versions


def is_older_than(minor: str) -> bool:
    return _number(versions.selected()) < _number(minor)


def since(minor: str, feature: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(is_older_than(minor), reason=f"{feature} since Kubernetes {minor}")


def _number(minor: str) -> tuple[int, ...]:
    return tuple(map(int, minor.split(".")))


device_health = since("1.36", "ResourceHealthStatus is on by default")
