"""Whole manifests as users write them: good ones without findings, bad ones with exact ids and lines."""

from pathlib import Path

import pytest

from imex_dra.lint.documents import read_source
from imex_dra.lint.manifests import load
from imex_dra.lint.rules import RULES, lint
from tests.lint.marked import findings, found, marked
from tests.paths import EXAMPLES

CORPUS = Path(__file__).parent
GOOD = sorted((*(CORPUS / "good").iterdir(), *EXAMPLES.rglob("*.yaml")))
BAD = sorted((CORPUS / "bad").iterdir())


def ids(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("path", GOOD, ids=ids)
def test_a_good_manifest_has_no_finding(path: Path) -> None:
    assert findings(path.read_text()) == []


@pytest.mark.parametrize("path", BAD, ids=ids)
def test_a_bad_manifest_has_exactly_the_findings_that_it_names(path: Path) -> None:
    text = path.read_text()
    assert marked(text)
    assert found(text) == marked(text)


def test_the_projects_examples_have_no_finding_together() -> None:
    sources = [read_source(str(path), path.read_text()) for path in sorted(EXAMPLES.rglob("*.yaml"))]
    assert lint(load(sources)) == []


def test_the_bad_manifests_break_nearly_every_rule() -> None:
    broken = {id for path in BAD for _, id in marked(path.read_text())}
    assert {rule.id for rule in RULES} - broken == {"IMEX154"}  # only in its example
