"""Every link within the documentation leads to a file, and to a heading in it."""

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, anchors, links
from tests.paths import ROOT


def broken(page: Path, link: str) -> str:
    """Why it leads nowhere; empty if it does not."""
    if link.startswith(("https://", "http://", "mailto:")):
        return ""  # no network in tests
    path, _, name = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return f"{link}: there is no such file"
    if name and target.suffix == ".md" and name not in anchors(target):
        return f"{link}: there is no such heading"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert [why for link in links(page) if (why := broken(page, link))] == []


def test_links_are_found() -> None:
    assert len([link for page in PAGES for link in links(page)]) > 150


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title: `code`\n\n[here](#a-title-code) [no](#other) [file](none.md)\n")
    assert [broken(page, link) for link in links(page)] == [
        "",
        "#other: there is no such heading",
        "none.md: there is no such file",
    ]
