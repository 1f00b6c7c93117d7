"""Consumers are served here, by any replica, whichever role it has. Nothing in this room imports leading or
following."""
