"""Drop-in software replacements for `nvidia-imex` and `nvidia-imex-ctl`, and a memory exchange library.

Soft IMEX runs on any Linux machine and behaves like NVIDIA's programs at every interface that a driver uses.
Processes on simulated nodes import each other's memory or are refused, as on a rack. A rack runs one daemon per
node, so this package uses only the standard library, and the daemon avoids modules that take memory: it uses
`selectors` instead of asyncio, getopt instead of argparse (1 MB less), and strings instead of pathlib (0.8 MB
less).
"""
