"""The asyncio drivers: they feed events to `dataplane.replica` and carry out its effects on the log and over NATS."""
