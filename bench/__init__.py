"""Measurements, each beside a yardstick that was measured in the same run: `python -m bench [NAME...]`.

A theme is a module here that has a tuple `BENCHMARKS` of functions; nothing else is needed to add one. A
benchmark takes a `Progress`, yields `Line`s, and its docstring says in `docs/benchmarks.md` how it measures. A
budget is compared with the value and gives a verdict; it never makes a test fail, because a machine's speed is
nobody's bug.
"""
