"""The NATS connection, its logins, and the embedded nats-server. The only package that imports nats."""
