"""A picture of the racks at a terminal: from watches to a snapshot, to a model, to styled text."""
