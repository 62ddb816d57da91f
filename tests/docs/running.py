"""How blocks of the documentation are executed: which ones, as which commands, and what their output has to be.

Blocks of the kind `sh`, and screens and blocks of the kind `console` with a prompt, are executed in the order of
the page. Comments directly above a block change that:

- `<!-- not run: REASON -->`: it is not executed.
- `<!-- objects: IMEX303 -->`: of a screen; it is executed on objects of the tests with this finding, without a
  cluster.
- `<!-- file: job.yaml -->`: of a manifest; commands of the page find it under this name.

The output after a prompt is compared, and commands that change nothing are repeated until it fits. A line `…`
stands for any lines, `…` in a line for any text; the number of spaces does not matter.
"""

import re
from pathlib import Path
from typing import NamedTuple

from tests.docs.pages import ALL_BLOCKS, PAGES, Block
from tests.paths import ROOT

MARKS = {"not run", "objects", "file"}
NAMESPACE = "team-a"
"""In pages. Each page has a namespace of its own, which is also that of its context."""

_PROMPT = "$ "
_READS = re.compile(
    r"imex (status|verify|explain|preflight|migrate cluster)\b|kubectl (-n \S+ )?(get|describe|logs|events|wait)\b"
)
# Of kubectl's client library; when it logs depends on timing: "I1118 09:15:16.648935    4219 reflector.go:664] …"
_CLIENT_LOG = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \w+\.go:\d+\] .*\n")
_MAY_FIND = re.compile(r"imex (status|verify|explain|preflight|lint|migrate)\b")


class Step(NamedTuple):
    command: str
    expected: str
    """Empty: anything."""

    @property
    def reads(self) -> bool:
        """It can be repeated."""
        return _READS.match(self.command) is not None

    def may_exit_with(self, code: int) -> bool:
        return code == 0 or (code == 1 and bool(self.expected) and _MAY_FIND.match(self.command) is not None)


def has_commands(block: Block) -> bool:
    return block.kind in ("sh", "console") or (block.kind == "" and f"\n{_PROMPT}" in f"\n{block.text}")


def is_run(block: Block) -> bool:
    """On racks."""
    return has_commands(block) and not {"not run", "objects"} & block.marks.keys()


RUN_PAGES = tuple(page for page in PAGES if any(is_run(block) for block in ALL_BLOCKS if block.page == page))
FOR_LAPTOPS = tuple(ROOT / "docs" / name for name in ("practice.md", "quickstart.md", "racks.md"))
"""Their readers have the embedded control plane: `make test` runs them on it, `make test-kube` on a real one."""
ON_OBJECTS = tuple(block for block in ALL_BLOCKS if "objects" in block.marks)


def steps(block: Block) -> list[Step]:
    """Of an `sh` block: one, the whole of it."""
    if block.kind == "sh":
        return [Step(block.text, "")]
    found: list[Step] = []
    for line in block.text.replace("\\\n", "").splitlines(keepends=True):
        if line.startswith(_PROMPT):
            found.append(Step(line.removeprefix(_PROMPT).rstrip("\n"), ""))
        elif found:
            found[-1] = found[-1]._replace(expected=found[-1].expected + line)
    return [step._replace(expected=step.expected if step.expected.strip() else "") for step in found]


def files(page: Path) -> dict[str, str]:
    """Manifests of the page by name."""
    return {
        block.marks["file"]: block.text for block in ALL_BLOCKS if block.page == page and "file" in block.marks
    }


def fits(expected: str, output: str) -> bool:
    return re.fullmatch(_pattern(expected), _CLIENT_LOG.sub("", _collapsed(output))) is not None


def _pattern(expected: str) -> str:
    lines = _collapsed(expected).splitlines()
    return "".join(r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*?") + r"\n" for line in lines)


def _collapsed(text: str) -> str:
    return "".join(f"{' '.join(line.split())}\n" for line in text.strip("\n").splitlines())
