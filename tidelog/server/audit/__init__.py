"""Records of a broker about itself: the audit trail, the streams of audit and of activity, and the bound of its log.

It must not import the other rooms of the server.
"""
