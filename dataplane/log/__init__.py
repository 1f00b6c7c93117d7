"""The commit log on disk. Blocking code, no event loop: the broker calls what blocks from worker threads."""
