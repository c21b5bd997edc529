"""Concrete victims: which tree nodes back a reservation, in the order in which they would be evicted."""

from __future__ import annotations

from collections.abc import Mapping

from model.oracle.pool import Node, Pool
from model.oracle.request import Path, Request
from model.oracle.rules import Violation


class Victims:
    """A view over the counted ledger: each reserved token is either free credit or one node that one escrow holds.

    Args:
        requests: of this rank, by id.
    """

    def __init__(self, pool: Pool, requests: Mapping[int, Request]) -> None:
        self._pool = pool
        self._requests = requests

    def undivided(self) -> int:
        """Free tokens that are no request's credit."""
        return self._pool.free() - sum(request.holding.credit for request in self._requests.values())

    def candidates(self) -> list[Path]:
        """Unlocked nodes that no escrow holds, leaves first; held nodes count as gone."""
        gone = {path for path, node in self._pool.nodes.items() if node.victim_of is not None}
        found: list[Path] = []
        while True:
            parents = {path[:-1] for path in self._pool.nodes if path not in gone}
            leaves = [
                (node.used, path)
                for path, node in self._pool.nodes.items()
                if not node.locks and path not in gone and path not in parents
            ]
            if not leaves:
                return found
            path = min(leaves)[1]
            gone.add(path)
            found.append(path)

    def take(self, request: Request, tokens: int) -> bool:
        """Free tokens first, then victims; False when there are too few, and nothing has changed."""
        credit = min(tokens, max(0, self.undivided()))
        found = self.candidates() if tokens > credit else []
        if len(found) < tokens - credit:
            return False
        request.holding.credit += credit
        for path in found[: tokens - credit]:
            self._pool.nodes[path].victim_of = request.rid
            request.holding.victims.append(path)
        return True

    def claimed(self, path: Path, node: Node) -> None:
        """Somebody has locked a victim: its escrow gets another before the claim is complete."""
        assert node.victim_of is not None
        owner = self._requests[node.victim_of]
        node.victim_of = None
        owner.holding.victims.remove(path)
        if not self.take(owner, 1):
            raise Violation(f"the escrow of r{owner.rid} is short after a claim")

    def replace_claimed(self, request: Request) -> bool:
        """Replace victims that were locked meanwhile; False when one can't be replaced."""
        for path in list(request.holding.victims):
            node = self._pool.nodes[path]
            if not node.locks:
                continue
            node.victim_of = None
            request.holding.victims.remove(path)
            if not self.take(request, 1):
                node.victim_of = request.rid
                request.holding.victims.append(path)
                return False
        return True

    def detached(self, path: Path, node: Node) -> None:
        """A node left the tree: its place is credit of the escrow that held it."""
        if node.victim_of is not None:
            owner = self._requests[node.victim_of].holding
            owner.victims.remove(path)
            owner.credit += 1

    def deepest_of(self, request: Request) -> Path:
        """The victim to evict next."""
        return max(request.holding.victims, key=lambda path: (len(path), -self._pool.nodes[path].used))

    def below(self, path: Path) -> list[Path]:
        """Descendants, deepest first."""
        found = [p for p in self._pool.nodes if len(p) > len(path) and p[: len(path)] == path]
        return sorted(found, key=len, reverse=True)

    def forget(self, request: Request) -> None:
        """The escrow ends: its victims are ordinary content again."""
        for path in request.holding.victims:
            self._pool.nodes[path].victim_of = None

    def check(self) -> None:
        """Every escrow adds up, and every victim belongs to the escrow that counts on it."""
        for request in self._requests.values():
            holding = request.holding
            if holding.credit + len(holding.victims) != holding.need or any(
                self._pool.nodes[path].victim_of != request.rid for path in holding.victims
            ):
                raise Violation(f"the escrow of r{request.rid} does not add up")
