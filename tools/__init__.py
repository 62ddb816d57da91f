"""Tools for developers; not part of a distribution."""
