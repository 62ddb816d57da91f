"""The largest values in API objects, so that no report can make a write of the controller invalid.

The controller derives its own counters and channel numbers from what nodes report. A field that a report fills has
therefore the same limit as the field of the NVLinkPartition that is computed from it.
"""

MAX_COUNTER = 1 << 50
"""Of epochs and generations. JSON numbers of this size are exact in every language."""

MAX_REPORTED_COUNTER = MAX_COUNTER // 2
"""The controller believes no report above it. The other half is left to its own increments."""

MAX_TIME = 32
"""Characters of a time (RFC 3339)."""

MAX_NODES = 4096
"""In one partition."""

MAX_CHANNELS = 1 << 20
"""In one partition: a channel is a minor device number, which has 20 bits."""
