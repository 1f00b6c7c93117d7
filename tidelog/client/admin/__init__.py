"""An operator's changes of streams: creation, settings, partitions, repartitions and copies.

It must not import the client: a copy names its requests to one in a protocol.
"""
