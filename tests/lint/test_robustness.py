"""No document makes lint crash, whatever types its values have: it finds something, or names the line."""

import json
from typing import Any

import hypothesis.strategies as st
import yaml
from hypothesis import HealthCheck, given, settings

from imex_dra.base.errors import Unreadable
from imex_dra.lint.documents import read_source
from imex_dra.lint.findings import Finding
from imex_dra.lint.manifests import load
from imex_dra.lint.report import line_of, plain, sarif
from imex_dra.lint.rules import RULES, lint
from imex_dra.lint.workloads import PLACES

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
WORDS = sorted(
    {
        word
        for rule in RULES
        for example in (rule.bad, rule.good)
        for token in yaml.scan(example)
        if isinstance(token, yaml.ScalarToken)
        for word in [token.value]
    }
    | {
        "All",
        "Launcher",
        "headGroupSpec",
        "items",
        "jobTemplate",
        "leaderWorkerTemplate",
        "matchExpressions",
        "size",
    }
)
"""Keys and values of real manifests: with them a generated document reaches the rules."""


def trees(leaves: st.SearchStrategy[object], keys: st.SearchStrategy[str]) -> st.SearchStrategy[object]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5),
        max_leaves=15,
    )


ANYTHING = trees(SCALARS, st.text(max_size=5))
NEARLY = trees(SCALARS | st.sampled_from(WORDS), st.sampled_from(WORDS))
DOCUMENTS = ANYTHING | st.fixed_dictionaries(
    {
        "apiVersion": st.sampled_from(["v1", "resource.nvidia.com/v1beta1", "resource.k8s.io/v1", "x"]),
        "kind": st.sampled_from(
            [*PLACES, "LeaderWorkerSet", "List", "ComputeDomain", "ResourceClaim", "ResourceClaimTemplate", "Any"]
        ),
    },
    optional={"metadata": NEARLY, "spec": NEARLY, "items": NEARLY},
)
settings.register_profile("lint", deadline=None, suppress_health_check=[HealthCheck.too_slow])


def check(text: str) -> list[Finding]:
    found = lint(load([read_source("f", text)]))
    for finding in found:
        assert finding.line >= 1
        assert line_of(finding).startswith("f:")
    json.dumps([plain(found), sarif(found, "1")])
    return found


@settings(settings.get_profile("lint"), max_examples=100)
@given(st.lists(DOCUMENTS, max_size=3))
def test_any_documents_are_checked(documents: list[object]) -> None:
    check(yaml.safe_dump_all(documents))


@settings(settings.get_profile("lint"), max_examples=100)
@given(st.text() | st.text(alphabet="{}[]&*:-?|>#'\"!%@`, \n\tab", max_size=40))
def test_any_text_is_checked_or_refused_with_its_line(text: str) -> None:
    try:
        check(text)
    except Unreadable as error:
        name, line, _ = str(error).split(":", 2)
        assert name == "f"
        assert int(line) >= 1


@settings(settings.get_profile("lint"), max_examples=100)
@given(st.data())
def test_examples_with_one_value_replaced_are_checked(data: st.DataObject) -> None:
    rule = data.draw(st.sampled_from(RULES))
    documents = list(yaml.safe_load_all(data.draw(st.sampled_from([rule.bad, rule.good]))))
    holder, key = data.draw(st.sampled_from(list(places(documents))))
    holder[key] = data.draw(ANYTHING | NEARLY)
    check(yaml.safe_dump_all(documents))


def places(tree: Any) -> list[tuple[Any, Any]]:
    pairs = (
        list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)) if isinstance(tree, list) else []
    )
    return [(tree, key) for key, _ in pairs] + [place for _, item in pairs for place in places(item)]
