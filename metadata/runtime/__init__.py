"""The metadata plane on an event loop: the drivers of the pure modules of `metadata`, composed by `metadata_service`.

    registration, views, outbound     the broker: it registers, receives its partitions, and asks the controller
    answers                           the broker: it answers the controller's probes and requests
    controller_driver, subscriptions  the controller: probes, proposals and timer; requests of brokers
    moves, admin, repartition_admin   the controller: planned moves of leaders; requests of clients and operators
    namespace                         both: one cluster per namespace

They share a context, its ports, and modules for proposals, messages and tasks.
"""
