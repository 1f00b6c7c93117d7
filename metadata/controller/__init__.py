"""The decisions of the broker that leads the Raft group: events in, effects out; requests of operators, and the state
described to them. It is pure, and must import neither Raft nor the runtime."""
