"""The client itself, and the rooms that it is made of.

`client` has `connect` and `Client`. The rooms, from the lowest: `base`, `cluster`, `consumer` beside `producer`,
`group`, `transaction`, `admin`; none of them imports a module that lies directly in this folder. The state machines do
no I/O, and time is an argument: `producer.accumulator`, `consumer.fetcher`, `group.membership`,
`transaction.producer_transactions`.

Nothing is imported here: `import tidelog` and `tidelog --help` must stay quick.
"""
