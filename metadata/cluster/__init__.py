"""The cluster state: its parts, its snapshot, its view for readers, elections, settings of streams, events of changes.

Pure. It imports neither the commands nor the controller.
"""
