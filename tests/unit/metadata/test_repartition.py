"""Operators change the number of partitions of a living stream."""

from __future__ import annotations

from tests.unit.metadata.brokers import CREATE, running, until
from wire.types import StreamName


async def test_a_stream_grows_and_keys_go_to_all_of_it() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        plan = (await world.api("stream.repartition", name="s", partitions=6, dry_run=True))["plan"]
        assert plan["made"] == [3, 4, 5]
        assert plan["moved_keys"] == 0.5
        assert plan["sources"][0] == {"partition": 3, "waits_for": [0]}
        assert (await world.api("stream.describe", name="s"))["repartition"] is None, "nothing was changed"
        answer = await world.api("stream.repartition", name="s", partitions=6)
        assert answer["plan"] == plan
        assert answer["status"]["partitions"] == 6
        assert answer["status"]["partitioning_version"] == 2
        await until(lambda: world.view(5).is_routed)
        await until(lambda: not any(world.view(number).awaits_cutover for number in range(6)))
        stream = world.brokers["b"].service.state.streams[StreamName("s")]
        assert stream.layouts[-1].starts == (7, 7, 7)
        assert not any(broker.service.status()["open_wishes"] for broker in world.brokers.values())
        status = await world.api("stream.repartition_status", name="s")
        assert status["repartition"]["phase"] == "cutover"
        assert (status["repartition"]["told"], status["repartition"]["of"]) == (3, 3)
        assert status["repartition"]["adopted"] is None
        assert status["repartition"]["told_for_s"] is not None
        routes = await world.api("metadata", stream="s")
        assert [layout["partitions"] for layout in routes["layouts"]] == [3, 6]
        form = await world.api("cluster.status")
        assert [each["stream"] for each in form["repartitions"]] == ["s"]
        assert form["topology_generation"] == stream.routing_generation
        assert (await world.api("stream.list"))["streams"][0]["partitions"] == 6
