"""The commands about the contents of a cluster: streams, partitions, offsets, groups, cursors and transactions.

It imports the terminal only.
"""
