"""Measurements, each next to a yardstick that was measured in the same run: `python -m bench [NAME...]`.

A theme is a module in this package with a tuple `BENCHMARKS` of functions; nothing else is needed to add one. A
benchmark takes a `Progress` and yields `Line`s, and its docstring becomes the description in docs/benchmarks.md. A
budget gives a verdict; it never fails a test, because the speed of a machine is not a defect of the code.
"""
