"""Routes for clients: pages of the topology, pushes, and sessions that report the generation that they have applied.

It must not import the other rooms of the server.
"""
