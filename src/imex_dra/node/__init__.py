"""`imex node`: one node's seats, card and claims."""
