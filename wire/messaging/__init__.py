"""NATS as the two planes see it: the port over which messages go and the port between brokers (`transport.py`), the
permissions that a NATS server refuses a login (`violation.py`), and the reply subjects that a broker answers on. It
imports `wire.security` and the top floor, never the formats of messages."""
