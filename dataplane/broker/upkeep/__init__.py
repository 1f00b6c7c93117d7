"""Work on logs that no request waits for: checkpoints, retention, eviction, compaction, scrubbing. Nothing in this room
imports a role or the replica; protocols say what it needs of one."""
