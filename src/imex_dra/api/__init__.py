"""The objects we read and write, as plain immutable values; no I/O happens here."""
