"""Compaction of a log by keys. This room stands above `partition_log`, which must not import it."""
