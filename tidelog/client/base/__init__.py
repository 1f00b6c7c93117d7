"""The lowest room of the client: checks of arguments, exceptions, records, serializers, positions and times of callers.

It imports no other room of the client.
"""
