"""What every layer stands on: errors, the clock, files, logging."""
