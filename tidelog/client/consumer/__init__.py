"""Reads a stream: the pure fetcher of one partition, the answers fetched ahead, look-ups of offsets, and `Consumer`.

It must not import `producer`, nor groups or transactions.
"""
