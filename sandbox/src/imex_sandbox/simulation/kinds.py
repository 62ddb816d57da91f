"""The kinds of objects that the simulation looks at, beside those of `embedded.kinds`."""

from imex_sandbox.embedded.kinds import KINDS, Kind


def _kind(plural: str) -> Kind:
    return next(kind for kind in KINDS if kind.plural == plural)


CLAIMS = _kind("resourceclaims")
TEMPLATES = _kind("resourceclaimtemplates")
SLICES = _kind("resourceslices")
NODES = _kind("nodes")
DOMAINS = _kind("computedomains")
PARTITIONS = _kind("nvlinkpartitions")
NVLINK_NODES = _kind("nvlinknodes")
