"""The protobuf messages, for programs in any language, and the modules that scripts/protos makes of them: tidelog.proto
(data plane), metadata.proto, groups.proto, transactions.proto, liftbridge.proto. It imports nothing of Tidelog."""
