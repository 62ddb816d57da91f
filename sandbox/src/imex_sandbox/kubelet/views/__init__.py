"""API types that only a kubelet reads: wider than the driver's views, but only the fields that it acts on."""
