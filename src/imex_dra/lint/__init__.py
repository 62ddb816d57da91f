"""Rules for manifests: `imex lint` finds what cannot work, or works by chance, before anything is applied.

Pure functions over plain values, without a cluster: `documents` (text to values) → `manifests` (objects, pod
templates, claims) → `rules` (findings) → `report`. A rule knows only the files that were given. What another
file or the cluster may contain is never an error.
"""
