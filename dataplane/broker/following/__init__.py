"""The follower's side of replication: it sends requests to its leader, and takes the answers into its log. Nothing in
this room imports leading or upkeep."""
