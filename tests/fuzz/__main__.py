"""`python -m tests.fuzz TARGET [libFuzzer options]`: fuzz one decoder of the driver (needs atheris).

Inputs that fail are written to `tests/fuzz/crashes/TARGET/`. The regular tests run them from then on.
"""

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

import structlog

atheris: Any = importlib.import_module("atheris")

with atheris.instrument_imports(include=["imex_dra", "tests.fuzz"]):
    from tests.fuzz.targets import targets


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    known = targets()
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        sys.exit(f"usage: python -m tests.fuzz {'|'.join(known)} [-max_total_time=SECONDS …]")
    name = sys.argv.pop(1)
    crashes = Path(__file__).parent / "crashes" / name
    crashes.mkdir(parents=True, exist_ok=True)
    atheris.Setup([sys.argv[0], f"-artifact_prefix={crashes}/", "-max_len=64", *sys.argv[1:]], known[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
