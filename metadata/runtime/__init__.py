"""The metadata plane on an event loop: drivers of the pure packages of `metadata`, composed by `metadata_service`.

    registration, views, outbound      the broker: it registers, receives its partitions, and asks the controller
    broker_answers                     the broker: it answers the controller's probes and requests
    controller_driver,
    controller_subscriptions           the controller: probes, proposals and timer; requests of brokers
    moves, admin_answers               the controller: planned moves of leaders; requests of clients and operators
    namespace                          both: one cluster per namespace

They share `driver_context`, the ports, and modules for proposals, messages and tasks.
"""
