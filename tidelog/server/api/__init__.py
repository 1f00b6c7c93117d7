"""The API over NATS that the controller answers, and the operations that it hands over to coordinators. It may import
the audit room; it must not import the process above it."""
