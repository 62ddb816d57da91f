"""A drop-in `nvidia-imex` and `nvidia-imex-ctl` in software, and memory that is really exchanged.

It runs on any Linux machine, behaves like NVIDIA's at every interface that a driver uses, and lets processes
on simulated nodes import each other's memory, or be refused. A rack runs one daemon per node, so this package
is lean: the standard library only, nothing else of ours. A daemon loads `selectors` instead of asyncio, getopt
instead of argparse (1 MB less) and keeps paths as strings instead of in pathlib's (0.8 MB less).
"""
