"""nvidia-imex on a node: `imex node` decides how it runs, a shell script keeps it running."""
