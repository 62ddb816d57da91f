"""What is wrong in a cluster: findings and explanations from a snapshot of its objects.

Pure functions over plain values, as in `lint`: `snapshot` (the objects) → `cluster` (indexes, and how objects
belong together) → `rules` (findings) → `chain` (explanations) → `report`. Only `loading` and `bundle` do I/O.
What the reader may not see is a missing part of the snapshot, with a sentence, and never a finding.
"""
