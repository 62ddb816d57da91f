"""The pages of the site: copied from the tree in its layout, for mkdocs (make docs)."""

import shutil
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_PAGES = _ROOT / "dist/pages"
_PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "docs/**/*.svg",
    "docs/**/*.css",
    "examples/**/*.md",
    "examples/**/*.yaml",
    "deploy/helm/imex-dra/README.md",
)


def sources() -> list[Path]:
    """Relative to the tree."""
    return sorted(path.relative_to(_ROOT) for pattern in _PATTERNS for path in _ROOT.glob(pattern))


def main() -> None:
    shutil.rmtree(_PAGES, ignore_errors=True)
    for path in sources():
        (_PAGES / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_ROOT / path, _PAGES / path)


if __name__ == "__main__":
    main()
