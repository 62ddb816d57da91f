"""API objects as immutable values. No I/O."""
