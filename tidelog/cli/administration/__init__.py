"""The commands of an operator: starting brokers, the cluster, secrets, contexts, permissions, audit, activity and a
stopped broker's data folder. It may import the terminal and the records."""
