"""Routes of streams from applied state: the pages of `<ns>.metadata.topology` (`wire.operations.stream_routes`).

A page is put together in turns of the routes of each stream, which are encoded once and kept until the stream changes.
So routes may be of different generations; each says of which one it is.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence

from metadata.cluster.model import Changes, Stream
from metadata.commands.cluster_state import ClusterState
from metadata.controller.descriptions import routes_form
from wire.errors import Code, TidelogError
from wire.internal_streams import is_internal
from wire.operations import json_codec
from wire.operations.stream_routes import MAX_PAGE, MAX_STREAMS_ASKED, MAX_TOPOLOGY_REQUEST_BYTES, TopologyRequest
from wire.subjects import Subjects
from wire.turns import Steps, in_turns
from wire.types import StreamName

MAX_KEPT_BYTES = 16 << 20
"""Bytes of encoded routes; all are forgotten when there are more."""
HEAD_BYTES = 1 << 10
"""Bytes of a page besides its streams, with the headers."""


class TopologyPages:
    """`broker`: this one. `stream_changes`: another number whenever streams were created or deleted."""

    def __init__(
        self, state: ClusterState, broker: str, subjects: Subjects, stream_changes: Callable[[], int], max_payload: int
    ) -> None:
        self._state = state
        self._broker = broker
        self._subjects = subjects
        self._stream_changes = stream_changes
        self.max_payload = max_payload
        self._kept: dict[StreamName, bytes] = {}
        self._kept_bytes = 0
        self._newest: dict[StreamName, object] = {}
        """By stream whose routes are being encoded and that has not changed since, the encoding that began last."""
        self._names: list[StreamName] = []
        """The names of all streams but Tidelog's own, ascending."""
        self._names_of: int | None = None
        """`stream_changes` when `_names` was made."""

    def on_changes(self, changes: Changes) -> None:
        """Forgets the encoded routes of the changed streams."""
        for name in {*changes.repartitioned, *(key.stream for key in (*changes.partitions, *changes.gone))}:
            self._newest.pop(name, None)
            kept = self._kept.pop(name, None)
            if kept is not None:
                self._kept_bytes -= len(kept)

    async def page(self, data: bytes) -> bytes:
        """Returns the answer to a request. Raises TidelogError(BAD_REQUEST)."""
        return await in_turns(self._page(decoded(data)))

    def _page(self, request: TopologyRequest) -> Steps[bytes]:
        state = self._state
        generation = state.generation
        streams: list[bytes] = []
        too_large: list[str] = []
        size = HEAD_BYTES
        last = following = None
        for name in self._asked(request):
            stream = state.streams.get(name)
            if stream is None:
                continue
            if len(streams) + len(too_large) >= request.limit:
                following = last
                break
            routes = yield from self.routes(stream)
            yield 1
            if HEAD_BYTES + len(routes) > self.max_payload:
                too_large.append(name)
                size += len(name) + 4
            elif size + len(routes) > self.max_payload:
                following = last
                break
            else:
                streams.append(routes)
                size += len(routes) + 2
            last = name
        head = json.dumps(
            {
                "cluster_id": state.cluster_id,
                "generation": generation,
                "home_broker": self._broker,
                "too_large": too_large,
                "next": following,
            }
        )
        return b'%s, "streams": [%s]}' % (head[:-1].encode(), b", ".join(streams))

    def _asked(self, request: TopologyRequest) -> Sequence[StreamName]:
        """Returns the requested names, ascending; each may exist."""
        if request.streams:
            return sorted(StreamName(name) for name in {*request.streams} if name > request.after)
        changes = self._stream_changes()
        if changes != self._names_of:
            self._names = sorted(
                name
                for name, stream in self._state.streams.items()
                if not is_internal(name, stream.subject, self._subjects)
            )
            self._names_of = changes
        first = bisect_right(self._names, request.after)
        # One name more than the page has shows whether there are more.
        return self._names[first : first + request.limit + 1]

    def routes(self, stream: Stream) -> Steps[bytes]:
        """Returns `StreamRoutes`, encoded."""
        kept, generation = self._kept.get(stream.name), self._state.generation
        if kept is None:
            self._newest[stream.name] = own = object()
            form = yield from routes_form(self._state, stream)
            rest = {key: value for key, value in form.items() if key != "generation"}
            kept = (yield from json_codec.encoding(rest))[:-1]
            if self._newest.get(stream.name) is own:  # the stream has not changed meanwhile
                del self._newest[stream.name]
                self._keep(stream.name, kept)
        return b'%s, "generation": %d}' % (kept, generation)

    def _keep(self, name: StreamName, routes: bytes) -> None:
        self._kept_bytes += len(routes) - len(self._kept.get(name, b""))
        if self._kept_bytes > MAX_KEPT_BYTES:
            self._kept.clear()
            self._kept_bytes = len(routes)
        self._kept[name] = routes


def decoded(data: bytes) -> TopologyRequest:
    """Returns the request in `data`. Raises TidelogError(BAD_REQUEST)."""
    if len(data) > MAX_TOPOLOGY_REQUEST_BYTES:
        raise TidelogError(
            Code.BAD_REQUEST,
            f"a request for topology of {len(data)} bytes is above {MAX_TOPOLOGY_REQUEST_BYTES}; name fewer streams",
        )
    try:
        request = json_codec.decode(TopologyRequest, data, "the request")
    except ValueError as error:
        raise TidelogError(Code.BAD_REQUEST, str(error)) from None
    if len(request.streams) > MAX_STREAMS_ASKED or not 1 <= request.limit <= MAX_PAGE:
        raise TidelogError(
            Code.BAD_REQUEST,
            f"a request for the topology names {len(request.streams)} streams with limit {request.limit}; name at most"
            f" {MAX_STREAMS_ASKED}, with a limit of 1 to {MAX_PAGE}",
        )
    return request
