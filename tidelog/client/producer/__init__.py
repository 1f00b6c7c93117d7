"""Writes a stream: batches, the pure accumulator of one partition and its pipe to the leader, routes, and `Producer`.

It must not import `consumer`, nor groups or transactions.
"""
