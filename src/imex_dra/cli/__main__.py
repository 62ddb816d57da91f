"""`python -m imex_dra.cli` is `imex`."""

from imex_dra.cli import main

main()
