"""docs/design/failures.md names the test of each failure: every name must exist."""

import re

from tests.paths import ROOT

NAME = re.compile(r"`([\w/]+\.py)((?:::\w+)*)`")


def test_every_test_that_the_table_names_exists() -> None:
    named = NAME.findall((ROOT / "docs/design/failures.md").read_text())
    assert len(named) > 30
    for path, names in named:
        source = (ROOT / "tests" / path).read_text()
        for name in names.split("::")[1:]:
            assert re.search(rf"(def|class) {name}\b", source), f"{path} has no {name}"
