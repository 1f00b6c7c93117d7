"""A log is opened here: how much of its bytes is trusted, and the damage that is found and kept. Nothing in this room
imports `partition_log` or its parts."""
