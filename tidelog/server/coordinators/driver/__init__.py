"""The drivers of coordinators on an event loop: one coordinator for each led partition of an internal stream, the kinds
of them, and their deliveries. It imports the pure rooms beside it, and must not import the process."""
