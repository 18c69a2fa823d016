# SPDX-License-Identifier: Apache-2.0
"""The connection of one engine process to the store, and what is registered there for a plan."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import queue
import threading
from collections.abc import Mapping
from typing import Any

from kvonce.engine import Connection, Counters, Epochs, Identity, OtherLayouts, Settings

from .layout import Plan, Rows

_log = logging.getLogger("kvonce")


@dataclasses.dataclass
class Built:
    """What is registered in one namespace: the page group, and in a rank's process its memory."""

    group: Any
    rank: Any = None
    pools: dict[str, Any] = dataclasses.field(default_factory=dict)  #: by Pool.key


class Store:
    """Link, epochs and counters of one process. rows: per cache group the layers' rows (layout.layer_rows); None in the
    scheduler's process. Raises Refused."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        identity: Identity,
        engine_id: str,
        rank: int | str,
        rows: Mapping[int, list[list[Rows]]] | None = None,
    ):
        self.plan = plan
        self.counters = Counters(settings.engine_id or engine_id, rank)
        self._rows = rows
        self._layouts = OtherLayouts(identity)
        self._leases: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._releaser: threading.Thread | None = None
        self.link = Connection(settings, engine_id, rank, self.counters)
        retire = self._retire if rows is not None else None
        self.epochs = Epochs(self.link, identity, self._build, retire, settings.on_reset, self.counters)

    def cause(self, reason: str, pages: int) -> str:
        """The cause under which a miss is counted. Other layouts of one model have pools of other names here, so their pages lack ours."""
        if reason == "group_incomplete" and pages == 0 and self._layouts.others:
            reason = "absent"
        return self._layouts.cause(reason, pages)

    def settle(self, seconds: float) -> None:
        """Waits so long for a store that is there, so that the first requests are served too. For an engine's start alone."""
        if self.link.connected:
            self.epochs.wait(seconds)

    def release(self, lease: Any) -> None:
        """Gives a lease back, on a thread of its own: a store that hangs holds nobody up. Never raises."""
        if self._releaser is None:
            self._releaser = threading.Thread(target=self._give_back, name="kvonce-leases", daemon=True)
            self._releaser.start()
        self._leases.put(lease)

    def close(self) -> None:
        """Ends everything; copies that are running end first, or within some seconds."""
        self._leases.put(None)
        self.epochs.close()
        self.link.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _give_back(self) -> None:
        while (lease := self._leases.get()) is not None:
            try:
                runtime = self.link.runtime
                if runtime is not None:
                    runtime.release(lease)
            except Exception as error:  # a lease that is not given back ends by itself
                _log.debug("kvonce: a lease could not be given back: %s", error)

    def _group_name(self) -> str:
        parts = [str(self.plan.place.ranks)]
        parts += [f"{pool.key} {pool.shard.counts} {pool.trailing}" for pool in self.plan.pools]
        return "vllm " + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def _build(self, namespace: Any) -> Built:
        from kvonce import GroupPool

        runtime = self.link.runtime
        if self._rows is None:
            self._layouts.announce(runtime, namespace, {pool.key: pool.shard.counts for pool in self.plan.pools})
        pools = [GroupPool(pool.key, shards=pool.shard.counts, trailing_pages=pool.trailing) for pool in self.plan.pools]
        built = Built(namespace.group(self._group_name(), pools, ranks=self.plan.place.ranks))
        if self._rows is not None:
            self._register(built)
        return built

    def _register(self, built: Built) -> None:
        from kvonce import Component, Layer

        place = self.plan.place
        built.rank = built.group.rank(tp=place.tp, pp=place.pp, cp=place.cp)
        try:
            for pool in self.plan.pools:
                components = [
                    Component(f"part{number}", [Layer(row.pointer, row.stride, row.size, self.plan.blocks) for row in layers])
                    for number, layers in enumerate(self._rows[pool.group])
                ]
                built.pools[pool.key] = built.rank.register_pool(
                    pool.key, components, rows=self.plan.blocks, shard=pool.shard.index, memory="host"
                )
        except BaseException:
            built.rank.close()
            raise

    def _retire(self, built: Built) -> None:
        built.rank.close()
