"""A network and the largest flow through it, by Dinic's algorithm: what minimum cuts are found by.

Capacities are whole numbers, so a cut is exact, and the one nearest to the sink is the same whichever flow was found.
"""

from __future__ import annotations

from collections import deque


class FlowNetwork:
    """Nodes by number, edges between them, and a flow from `source` to `sink` that `saturate` makes as large as can be.

    Edge `n ^ 1` is edge `n` the other way; `room` is how much more each can take.
    """

    def __init__(self, nodes: int, source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        self.heads: list[int] = []
        self.room: list[int] = []
        self.edges: list[list[int]] = [[] for _ in range(nodes)]

    def add_edge(self, tail: int, head: int, room: int) -> int:
        """Add an edge; its number."""
        number = len(self.heads)
        self.heads += (head, tail)
        self.room += (room, 0)
        self.edges[tail].append(number)
        self.edges[head].append(number + 1)
        return number

    def saturate(self) -> None:
        """Send as much as can be from the source to the sink."""
        while (levels := self._levels()) is not None:
            self._block(levels)

    def before_the_sink(self) -> set[int]:
        """The nodes from which more could flow to the sink: the smallest side of it that a minimum cut leaves."""
        found, left = {self.sink}, [self.sink]
        while left:
            for edge in self.edges[left.pop()]:
                tail = self.heads[edge]
                if self.room[edge ^ 1] > 0 and tail not in found:
                    found.add(tail)
                    left.append(tail)
        return found

    def _levels(self) -> list[int] | None:
        """How many edges each node is from the source; None where the sink is not reached."""
        levels = [-1] * len(self.edges)
        levels[self.source] = 0
        left = deque([self.source])
        while left:
            node = left.popleft()
            for edge in self.edges[node]:
                head = self.heads[edge]
                if self.room[edge] > 0 and levels[head] < 0:
                    levels[head] = levels[node] + 1
                    left.append(head)
        return levels if levels[self.sink] >= 0 else None

    def _block(self, levels: list[int]) -> None:
        """Send flow along shortest ways until none is left."""
        heads, room, edges = self.heads, self.room, self.edges
        turn = [0] * len(edges)
        way: list[int] = []
        node = self.source
        while True:
            if node == self.sink:
                sent = min(room[edge] for edge in way)
                first = len(way)
                for place, edge in enumerate(way):
                    room[edge] -= sent
                    room[edge ^ 1] += sent
                    if room[edge] == 0:
                        first = min(first, place)
                node = heads[way[first] ^ 1]
                del way[first:]
                continue
            while turn[node] < len(edges[node]):
                edge = edges[node][turn[node]]
                if room[edge] > 0 and levels[heads[edge]] == levels[node] + 1:
                    break
                turn[node] += 1
            else:
                if not way:
                    return
                edge = way.pop()
                node = heads[edge ^ 1]
                turn[node] += 1
                continue
            way.append(edge)
            node = heads[edge]
