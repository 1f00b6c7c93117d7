"""The leader's side: publishes, clients' batches, ends of transactions, and the service to its followers. Nothing in
this room imports following or upkeep."""
