"""The replication state machines: that of a replica, leader, follower, ISR states, HW, pending acknowledgements.

Pure: events in (`on_…(…, now)`), effects out (`dataplane.replica.replica_effects`). Nothing here waits, reads a clock
or touches a socket or a disk; `dataplane.broker` carries the effects out and hands their completions back as events.
"""
