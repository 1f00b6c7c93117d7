"""The transactions of a producer: the pure `producer_transactions`, the session with the coordinator, the writers.

Transactions that are prepared are here, too. It must not import `admin`.
"""
