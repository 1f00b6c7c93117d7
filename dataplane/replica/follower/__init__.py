"""A follower of one partition during one LeaderEpoch. Pure. Nothing in this room imports leader."""
