"""`python -m imex_dra.cli` runs `imex`."""

from imex_dra.cli import main

main()
