"""The generated files of the chart, without helm: schema, README, RBAC, version."""

import json
from typing import Any

import pytest
import yaml

import imex_dra
from tests.chart.helm import CHART
from tools import chart

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
TEXT = (CHART / "values.yaml").read_text()
VALUES = list(chart.documented(TEXT, yaml.safe_load(TEXT)))


def schema_of(path: str) -> dict[str, Any]:
    found: dict[str, Any] = SCHEMA
    for key in path.split("."):
        assert found["additionalProperties"] is False
        found = found["properties"][key]
    return found


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.path)
def test_every_value_is_in_the_schema_and_in_the_readme(value: chart.Value) -> None:
    assert schema_of(value.path)["type"]
    assert f"| `{value.path}` |" in (CHART / "README.md").read_text()


def test_the_version_is_that_of_the_package() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == imex_dra.__version__


def test_every_constraint_is_one_of_a_value() -> None:
    assert chart.CONSTRAINTS.keys() <= {value.path for value in VALUES}


def test_a_value_without_a_comment_is_reported() -> None:
    with pytest.raises(ValueError, match=r"values\.yaml: log\.level has no comment"):
        list(chart.documented("log:\n  level: info\n", {"log": {"level": "info"}}))
