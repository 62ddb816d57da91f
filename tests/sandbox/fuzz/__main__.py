"""`python -m tests.sandbox.fuzz ENDPOINT [libFuzzer options]`: fuzz one endpoint of the daemon (needs atheris).

Inputs that fail are written to `tests/sandbox/fuzz/crashes/ENDPOINT/`. The regular tests run them from then on.
"""

import atexit
import importlib
import sys
from pathlib import Path
from typing import Any

atheris: Any = importlib.import_module("atheris")

with atheris.instrument_imports(include=["imex_sandbox.softimex", "tests.sandbox.fuzz"]):
    from tests.sandbox.fuzz.endpoints import ENDPOINTS, InProcessDaemon, run_input
    from tests.sandbox.fuzz.inputs import parse_input


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in ENDPOINTS:
        sys.exit(f"usage: python -m tests.sandbox.fuzz {'|'.join(ENDPOINTS)} [-max_total_time=SECONDS …]")
    endpoint = sys.argv.pop(1)
    crashes = Path(__file__).parent / "crashes" / endpoint
    crashes.mkdir(parents=True, exist_ok=True)
    daemon = InProcessDaemon()
    atexit.register(daemon.close)

    def test_one_input(data: bytes) -> None:
        run_input(daemon, endpoint, parse_input(data))

    atheris.Setup([sys.argv[0], f"-artifact_prefix={crashes}/", "-max_len=512", *sys.argv[1:]], test_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
