"""A member of a consumer group: membership, session, assigned partitions, reading, commits, and `GroupConsumer`.

Operators' requests about groups are here, too, and cursors, which the same coordinators keep. It must not import
`transaction` or `admin`.
"""
