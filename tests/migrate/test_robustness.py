"""No manifest makes migrate crash, whatever types its values have: it changes it, or names it as left to do."""

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import given, settings

from imex_dra.base.errors import Unreadable
from imex_dra.lint.rules import RULES
from imex_dra.migrate.migration import migrate
from tests.lint.test_robustness import ANYTHING, DOCUMENTS, NEARLY, places
from tests.migrate.test_migration import LEGACY

EXAMPLES = [LEGACY, *(example for rule in RULES for example in (rule.bad, rule.good))]


@settings(settings.get_profile("lint"), max_examples=100)
@given(st.lists(DOCUMENTS, max_size=3), st.booleans())
def test_any_documents_are_migrated(documents: list[object], flow: bool) -> None:
    migrate({"f": yaml.safe_dump_all(documents, default_flow_style=flow)})


@settings(settings.get_profile("lint"), max_examples=100)
@given(st.data())
def test_examples_with_one_value_replaced_are_migrated(data: st.DataObject) -> None:
    documents = list(yaml.safe_load_all(data.draw(st.sampled_from(EXAMPLES) | st.just(LEGACY))))
    holder, key = data.draw(st.sampled_from(list(places(documents))))
    holder[key] = data.draw(ANYTHING | NEARLY)
    migrate({"f": yaml.safe_dump_all(documents, default_flow_style=data.draw(st.booleans()))})


@settings(settings.get_profile("lint"), max_examples=100)
@given(st.text() | st.text(alphabet="{}[]&*:-?|>#'\"!%@`, \n\tab", max_size=40))
def test_any_text_is_migrated_or_refused(text: str) -> None:
    try:
        migrate({"f": text})
    except Unreadable as error:
        name, _ = str(error).split(":", 1)
        assert name == "f"


WORKER = """\
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec:
  parallelism: 2
  template:
    METADATA
    spec:
      containers:
      - name: main
        image: x
        env: [{name: NVIDIA_IMEX_CHANNELS, value: "0"}]
        RESOURCES
"""


def test_a_merged_mapping_is_left_to_the_user() -> None:
    """Its entries are one level deeper in the text than in the values."""
    spec = {"containers": [{"name": "x", "image": "x", "env": [{"name": "NVIDIA_IMEX_CHANNELS", "value": "0"}]}]}
    job = {"kind": "Job", "metadata": {"name": "a"}, "spec": {"<<": {"template": {"spec": spec}}}}
    text = yaml.safe_dump(job).replace("'<<'", "<<")
    done = migrate({"f": text})
    assert done.after["f"] == text
    (left,) = done.by_hand
    assert "merges" in left.message


@pytest.mark.parametrize(
    ("metadata", "resources"),
    [
        ("metadata: text", ""),
        ("metadata: [a]", ""),
        ("metadata: {labels: 5}", ""),
        ("? [a, b]\n    : c", ""),
        ("? {a: b}\n    : c", ""),
        ("", "resources: 5"),
        ("", "resources: [limits]"),
        ("", "resources: {claims: imex}"),
        ("", "? [a]\n        : b"),
        ("metadata: !!set {a, b}", ""),
        ("<<: {metadata: {labels: {a: b}}}", ""),
        ("? metadata\n    : {labels: {a: b}}", ""),
        ("", "<<: {resources: {limits: {a: 1}}}"),
        ("", "? resources\n        : {limits: {a: 1}}"),
    ],
)
def test_a_workload_with_unusual_yaml_is_left_to_the_user_or_migrated(metadata: str, resources: str) -> None:
    text = WORKER.replace("METADATA", metadata).replace("RESOURCES", resources)
    done = migrate({"f": text})
    assert done.by_hand or list(yaml.compose_all(done.after["f"]))
    assert bool(done.changes) != bool(done.by_hand)
