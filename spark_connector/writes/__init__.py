"""Writing streams: the writers that Spark calls, their options and rows, delivery, and the record of a committed batch.

It must not import reads.
"""
