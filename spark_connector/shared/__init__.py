"""Common parts of reads and writes: connections to clusters, values of options, rows as Arrow, errors in one sentence.

It must import neither reads nor writes.
"""
