"""The base of the coordinators of internal streams. Pure: requests and events in, records, answers and
deliveries out.

One `Shard` (`shard`) is the state of one partition of an internal stream in one LeaderEpoch: consumer groups
(`tidelog.server.coordinators.groups`) or transactions (`tidelog.server.coordinators.transactions`).
`tidelog.server.coordinators.driver.coordinator` drives it:

    records of the partition ──replay──> shard <──take── requests of clients, and of brokers
                                           │ settle   <──on_delivered── confirmations of other brokers
                                           v
          records, which are appended together ──committed──> answers to the requests, and deliveries to others

`settle` carries out the requests taken since the last call and changes the state at once. The next `settle` follows
when the records are committed; where that fails the whole shard is given up, and made anew from the log. So no answer
and no delivery states anything that a successor would not know.
"""
