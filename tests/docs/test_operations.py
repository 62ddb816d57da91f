"""docs/operations.md names only values, findings and files that exist."""

import re

import pytest
import yaml

from tests.paths import DEPLOY, ROOT

TEXT = (ROOT / "docs/operations.md").read_text()
VALUES = yaml.safe_load((DEPLOY / "helm/imex-dra/values.yaml").read_text())
WORD = re.compile(rf"\b({'|'.join(VALUES)})((?:\.[A-Za-z]+)+)\b")
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")


def exists(path: str) -> bool:
    found = VALUES
    for key in path.split("."):
        if not isinstance(found, dict) or key not in found:
            return False
        found = found[key]
    return True


def test_every_value_exists() -> None:
    code = " ".join(re.findall(r"`([^`\n]+)`", TEXT) + re.findall(r"--set (\S+)=", TEXT))
    named = {"".join(found) for found in WORD.findall(code)}
    assert len(named) > 10
    assert sorted(path for path in named if not exists(path)) == []


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("file", "anchor"), sorted(set(LINK.findall(TEXT))))
def test_every_link_leads_somewhere(file: str, anchor: str) -> None:
    target = ROOT / "docs" / file if file else ROOT / "docs/operations.md"
    assert target.is_file()
    if anchor:
        assert anchor in anchors(target.read_text())
