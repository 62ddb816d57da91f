"""Manifests that say what lint must find in them: a line ends with `# <-- IMEX101` or `# <-- IMEX101, IMEX105`."""

import re

from imex_dra.lint.documents import read_source
from imex_dra.lint.findings import Finding
from imex_dra.lint.manifests import load
from imex_dra.lint.rules import lint

_MARK = re.compile(r"# <-- (IMEX\d{3}(?:, IMEX\d{3})*)$")


def marked(text: str) -> list[tuple[int, str]]:
    return [
        (number, id)
        for number, line in enumerate(text.splitlines(), 1)
        if (found := _MARK.search(line))
        for id in sorted(found[1].split(", "))
    ]


def findings(text: str, namespace: str = "") -> list[Finding]:
    return lint(load([read_source("manifest.yaml", text)], namespace))


def found(text: str, namespace: str = "") -> list[tuple[int, str]]:
    return sorted((finding.line, finding.id) for finding in findings(text, namespace))
