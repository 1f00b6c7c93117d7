"""For an operator, while no broker uses the log: its files are shown and verified, and indexes are made anew. Nothing
in the log imports this room."""
