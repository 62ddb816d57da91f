"""Where things are in the source tree."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
EXAMPLES = ROOT / "examples"
