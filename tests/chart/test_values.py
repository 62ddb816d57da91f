"""The generated files of the chart, without helm: schema, README, RBAC, version."""

import json
import re
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


def used_values() -> set[str]:
    """Paths that the templates use."""
    text = "".join(path.read_text() for path in sorted((CHART / "templates").rglob("*")) if path.is_file())
    found = set(re.findall(r"\.Values\.([A-Za-z]+(?:\.[A-Za-z]+)*)", text))
    # The helper imex-dra.deploymentPlacement gets the values of a program as a whole.
    programs = set(re.findall(r'"imex-dra.deploymentPlacement" \(list . "\w+" \.Values\.(\w+)\)', text))
    fields = re.findall(r"\$values\.([A-Za-z]+)", text)
    return found - programs | {f"{program}.{field}" for program in programs for field in fields}


def is_part(path: str, of: str) -> bool:
    return path == of or path.startswith(f"{of}.")


def test_every_value_that_a_template_uses_is_documented() -> None:
    known = [value.path for value in VALUES]
    assert {used for used in used_values() if not any(is_part(path, used) for path in known)} == set()


def test_every_value_is_used_by_a_template() -> None:
    used = used_values()
    # A field of a value is a use of it; that of its parent is not.
    assert [value.path for value in VALUES if not any(is_part(path, value.path) for path in used)] == []


def test_the_version_is_that_of_the_package() -> None:
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == imex_dra.__version__


def test_every_constraint_is_one_of_a_value() -> None:
    assert chart.CONSTRAINTS.keys() <= {value.path for value in VALUES}


def test_a_value_without_a_comment_is_reported() -> None:
    with pytest.raises(ValueError, match=r"values\.yaml: log\.level has no comment"):
        list(chart.documented("log:\n  level: info\n", {"log": {"level": "info"}}))
