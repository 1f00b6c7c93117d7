"""The connection of a client to the cluster.

Requests to the controller and to coordinators, the metadata cache and the updates of its routes, the event loop and the
closing of everything that is opened. It imports `base` alone.
"""
