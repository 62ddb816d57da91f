"""What a kubelet reads of the API: wider than the driver's views, still only what is acted on."""
