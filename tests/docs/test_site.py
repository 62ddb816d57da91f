"""The navigation of the site has every page once, and no other."""

from collections.abc import Iterator
from typing import Any

import yaml

from tests.docs.pages import PAGES
from tests.paths import ROOT
from tools.site import sources


def entries(navigation: Any) -> Iterator[str]:
    match navigation:
        case str():
            yield navigation
        case list():
            for one in navigation:
                yield from entries(one)
        case dict():
            for one in navigation.values():
                yield from entries(one)


def test_the_navigation_has_every_page_once() -> None:
    configuration = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(entries(configuration["nav"])) == sorted(str(page.relative_to(ROOT)) for page in PAGES)


def test_every_page_and_picture_is_copied() -> None:
    copied = {ROOT / path for path in sources()}
    assert set(PAGES) <= copied
    assert set(ROOT.glob("docs/**/*.svg")) <= copied
