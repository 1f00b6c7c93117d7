"""Transactions as their coordinator knows them. Pure (`tidelog.server.coordinators` says how it is driven).

A transactional producer has an id that outlives it. Its coordinator gives the producer a number and an epoch, registers
each partition and each group that takes part in a transaction before anything is written there, decides, and has the
decision written everywhere. `transaction_metadata` draws the states, `participants` has the messages to participants;
`transaction_shard` has the transactional ids of one partition of `__transactions`. docs/transactions.md has the
protocol.
"""
