"""The derived state of a log, which could be learned from its batches again; its snapshots; and a log that begins anew
with one. Nothing in this room imports another room but storage and segments."""
