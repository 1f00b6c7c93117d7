"""A process and its machine: packages that a user's file hides, memory, private files, threads for slow files,
loopback.

It imports nothing of tidelog. `shadowing` imports nothing of ours at all, because it runs before `wire` is known to be
ours.
"""
