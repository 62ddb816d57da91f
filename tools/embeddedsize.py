"""The size of the embedded control plane, for docs/embedded.md: counted, so that it is true.

Rounded, so that not every change of a line is one of the page.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "sandbox/src/imex_sandbox/embedded"
PAGE = ROOT / "docs/embedded.md"
TARGET = 3500
_ROUNDED_TO = 50
_TABLE = re.compile(r"(?<=<!-- size -->\n).*?(?=<!-- end of size -->)", re.DOTALL)

PARTS = {
    "server-side apply and patches": ("lists", "patches", "strategic"),
    "tables as kubectl prints them": ("jsonpaths", "podrows", "tables"),
    "types, defaults and checks of built-in kinds": ("admission", "builtin", "podvalidation", "validation"),
    "schemas of CRDs": ("definitions", "schemas"),
    "scheduler, with allocation of devices": ("allocation", "labels", "placement", "scheduler"),
    "MPIJobs": ("mpijobs",),
    "other controllers": ("claims", "controllers", "garbage", "nodelifecycle", "workloads"),
}
OTHER = "requests, storage, watches, permissions, discovery, kubelets"


def document() -> dict[Path, bytes]:
    page, count = _TABLE.subn(table(), PAGE.read_text())
    assert count == 1, f"{PAGE} has no place for the size"
    return {PAGE: page.encode()}


def table() -> str:
    modules = {path.stem: path.read_text() for path in sorted(SOURCE.glob("*.py"))}
    named = {name for names in PARTS.values() for name in names}
    parts = {**PARTS, OTHER: tuple(name for name in modules if name not in named), "all": tuple(modules)}
    rows = ["| part | lines | without blank lines, comments and docstrings |", "|---|---|---|"]
    for title, names in parts.items():
        text = [modules[name] for name in names]
        rows.append(f"| {title} | {_rounded(map(_lines, text))} | {_rounded(map(code_lines, text))} |")
    return "\n".join(["", *rows, f"| target | {TARGET:,} | |", "", ""])


def code_lines(text: str) -> int:
    strings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    numbered = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in numbered if line.strip() and line.strip()[0] != "#" and number not in strings)


def _lines(text: str) -> int:
    return len(text.splitlines())


def _rounded(counts: "map[int]") -> str:
    return f"{round(sum(counts) / _ROUNDED_TO) * _ROUNDED_TO:,}"
