"""Segments: files of batches with their sparse index, the walk over their headers, and the limits of their age and
size. Nothing in this room imports another one but storage."""
