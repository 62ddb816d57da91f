"""The largest values in API objects, so that no report can make a write of the controller invalid.

The controller derives its own counters, channel numbers and messages from what nodes report. A field that a report
fills has therefore the same limit as the field of the NVLinkPartition that is computed from it.
"""

MAX_COUNTER = 1 << 50
"""Of epochs and generations. JSON numbers of this size are exact in every language."""

MAX_REPORTED_COUNTER = MAX_COUNTER // 2
"""The controller believes no report above it. The other half is left to its own increments."""

MAX_NAME = 253
"""Characters of the name of an object."""

MAX_UID = 64

MAX_TEXT = 1024
"""Characters of a sentence in a report, or about one node. A longer one is cut."""

ADDRESS = r"^[0-9a-fA-F.:]*$"
"""An IP address, or none: it is copied into the hosts file of every member."""
MAX_ADDRESS = 45

MAX_TIME = 32
"""Characters of a time (RFC 3339)."""

MAX_NODES = 4096
"""In one partition."""

MAX_GPUS = 256
"""In one node."""

MAX_PRODUCT = 96
"""Characters of the product name of a GPU, as in NVML."""

MAX_CHANNELS = 1 << 20
"""In one partition: a channel is a minor device number, which has 20 bits."""
