"""Liftbridge's gRPC API on a port of the broker, for clients that were written for Liftbridge.

    Liftbridge client ── gRPC ──> port.py ── calls.py ──> stream_calls.py, metadata_calls.py, publish_calls.py, …
                                                              └─ a client of Tidelog ── NATS ──> controller and leaders

Every broker with the port answers every call: behind it is an ordinary client of the cluster, with a NATS connection
and a login of its own, which finds leaders and outlives them. So nothing here knows of replication, and nobody gets
more rights over the port than that login has over NATS. Metadata of streams come from the cluster state that this
broker has applied.

| module | contents |
|---|---|
| `port_settings.py` | the configuration |
| `port.py` | listens: TLS, limits, begin and end |
| `calls.py` | the calls by name; requests decoded, refusals made into statuses of gRPC |
| `gateway.py` | shared by the calls: the client, the cluster state, the addresses of the brokers |
| `stream_calls.py` | CreateStream, DeleteStream, PauseStream, SetStreamReadonly, SetCursor, FetchCursor |
| `metadata_calls.py` | FetchMetadata, FetchPartitionMetadata |
| `publish_calls.py`, `gateway_producers.py` | Publish, PublishAsync, PublishToSubject |
| `subscribe_calls.py` | Subscribe |
| `consumer_calls.py` | JoinConsumerGroup, LeaveConsumerGroup, FetchConsumerGroupAssignments,
ReportConsumerGroupCoordinator |

Only this folder imports grpc, which the extra `liftbridge` installs, and only a broker with the port imports this
folder beyond `port_settings.py`. docs/liftbridge.md lists for users the differences from Liftbridge.
"""
