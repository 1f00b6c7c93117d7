"""The logs of a broker stand on this room: the file system, small files and their checkpoints, the data folder and its
manifest, syncs, and the memory and handles that logs share. Nothing in it imports another room of the log."""
