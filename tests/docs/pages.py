"""The pages of the documentation: their fenced blocks, command lines, links and anchors."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.paths import ROOT

PAGES = tuple(
    sorted(
        path
        for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "deploy/helm/imex-dra/README.md")
        for path in ROOT.glob(pattern)
    )
)

_FENCE = re.compile(r"^ *```(\S*)")
_MARK = re.compile(r"^<!-- ([a-z ]+?)(?:: (.+))? -->$")
_LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*?) *#*$")
_ANCHOR = re.compile(r'<a (?:id|name)="([^"]+)"')


class Block(NamedTuple):
    page: Path
    line: int
    kind: str
    text: str
    marks: dict[str, str]
    """Of comments directly above it: `<!-- not run: it needs a GPU -->`. They are explained in `running.py`."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    found: list[Block] = []
    kind, start, lines, marks = "", 0, list[str](), dict[str, str]()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if not fence:
            lines.append(line)
            mark = _MARK.match(line)
            marks = marks | {mark[1]: mark[2] or ""} if mark and not start else marks if start else {}
        elif start:
            found.append(Block(page, start, kind, "".join(f"{one}\n" for one in lines), marks))
            start, marks = 0, {}
        else:
            kind, start, lines = fence[1], number, []
    assert not start, f"{page}:{start}: the block has no end"
    return tuple(found)


ALL_BLOCKS = tuple(block for page in PAGES for block in blocks(page))


def command_lines(block: Block) -> Iterator[str]:
    """Of a script: every line. Of a screen: the lines with a prompt. Continued lines are joined."""
    prompt = "" if block.kind == "sh" else "$ "
    for line in block.text.replace("\\\n", " ").splitlines():
        if line.startswith(prompt) and line.strip() and not line.lstrip().startswith("#"):
            yield line.removeprefix(prompt)


def prose(page: Path) -> str:
    """Without blocks and code, where nothing is a link."""
    lines, inside = [], False
    for line in page.read_text().splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            lines.append(re.sub(r"`[^`]*`(?!\])", "", line) if "](" not in line else line)
    return "\n".join(lines)


def links(page: Path) -> list[str]:
    return _LINK.findall(prose(page))


@cache
def anchors(page: Path) -> frozenset[str]:
    """As GitHub makes them from headings."""
    text = prose_with_code(page)
    names = [anchor(found[1]) for line in text.splitlines() if (found := _HEADING.match(line))]
    numbered = [f"{name}-{names[:index].count(name)}" for index, name in enumerate(names) if name in names[:index]]
    return frozenset((*names, *numbered, *_ANCHOR.findall(text)))


def prose_with_code(page: Path) -> str:
    lines, inside = [], False
    for line in page.read_text().splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            lines.append(line)
    return "\n".join(lines)


def anchor(heading: str) -> str:
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
