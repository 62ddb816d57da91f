"""The real controller and node programs under random faults in virtual time, from one seed."""
