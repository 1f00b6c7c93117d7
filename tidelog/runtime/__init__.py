"""Tidelog's runtime: the NATS connection and the embedded nats-server. The only package that imports nats."""
