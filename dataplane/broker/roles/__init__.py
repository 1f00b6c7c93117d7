"""Every role of a replica stands on this room: `Role`, the context of its broker, the prologue of requests,
answers, and the message ids that outlive a role. Nothing in it imports leading, following, reading or upkeep."""
