"""`python -m tests.fuzz DOOR [libFuzzer options]`: knock at a door until something breaks (needs atheris).

What breaks is written to `tests/fuzz/crashes/DOOR/`, where the ordinary tests find it from then on.
"""

import atexit
import importlib
import sys
from pathlib import Path
from typing import Any

atheris: Any = importlib.import_module("atheris")

with atheris.instrument_imports(include=["imex_dra.softimex", "tests.fuzz"]):
    from tests.fuzz.doors import DOORS, House, knock
    from tests.fuzz.visits import compose


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in DOORS:
        sys.exit(f"usage: python -m tests.fuzz {'|'.join(DOORS)} [-max_total_time=SECONDS …]")
    door = sys.argv.pop(1)
    crashes = Path(__file__).parent / "crashes" / door
    crashes.mkdir(parents=True, exist_ok=True)
    house = House()
    atexit.register(house.close)

    def visit(data: bytes) -> None:
        honest, chunks = compose(data)
        knock(house, door, chunks, honest)

    atheris.Setup([sys.argv[0], f"-artifact_prefix={crashes}/", "-max_len=512", *sys.argv[1:]], visit)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
