"""Racks as people like to look at them: watches in, a scene of plain values, coloured lines out."""
