"""Foundations of every layer: errors, the clock, atomic files, waiting, logging."""
