"""Consumer groups and cursors as their coordinator knows them. Pure: requests in, records and answers out.

One `GroupShard` is the state of one partition of the internal stream `__groups` (`wire.internal_streams`), in one
LeaderEpoch. Its coordinator (`tidelog.server.coordinators.driver.coordinator`) drives it:

    records of the partition ──replay──> shard <──take── requests of members, of owners of cursors, of the controller
                                           │ settle
                                           v
                    records, which are appended as batches ──committed──> answers to all requests

`settle` carries out the requests taken since the last call, computes assignments once for all of them, and changes
the state at once. The next `settle` follows when the records are committed; where that fails the whole shard is given
up, and made anew from the log. So no answer states anything that a successor would not know.

docs/groups.md says how a group works. `assignor` computes the assignments; `consumer_group` has the state of one
group.
"""
