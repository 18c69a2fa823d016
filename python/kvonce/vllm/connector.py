# SPDX-License-Identifier: Apache-2.0
"""The class that vLLM loads: hands the hooks on to the two sides, and turns what cannot be served into one sentence."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.logger import init_logger

from kvonce.engine import Counters, Failures, Refused, Settings

from .facts import facts_of, identity_of
from .guard import guarded
from .layout import layer_rows, make_plan
from .messages import Done, Step
from .metrics import KvonceProm, KvonceStats
from .scheduler import SchedulerSide
from .store import Store
from .worker import WorkerSide

_log = init_logger(__name__)

#: Keys of the extra config that vLLM itself puts or reads there.
ENGINE_KEYS = frozenset({"enable_cross_layers_blocks", "kv_connector_priority"})
CLOSE_SECONDS = 5.0
START_SECONDS = 5.0  # the engine's start waits so long for the store to register it


def _logging_as_the_engine() -> None:
    # kvonce's own lines go where the engine's go.
    logger = logging.getLogger("kvonce")
    engine = logging.getLogger("vllm")
    if not logger.handlers and engine.handlers:
        logger.handlers = list(engine.handlers)
        logger.setLevel(engine.level)
        logger.propagate = False


class KvonceMetadata(KVConnectorMetadata):
    """One step's work for the ranks."""

    def __init__(self, step: Step):
        self.step = step


@dataclasses.dataclass
class KvonceWorkerMetadata(KVConnectorWorkerMetadata):
    """What the ranks answer."""

    done: Done

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Adds another rank's."""
        assert isinstance(other, KvonceWorkerMetadata)
        self.done.merge(other.done)
        return self


class KvonceConnector(KVConnectorBase_V1, SupportsHMA):
    """kvonce as vLLM's KV connector: loads and saves between steps, for models of all kinds of cache groups.

    A set-up that cannot be served is told in one sentence, and the engine runs without kvonce. So does one whose store
    does not answer, until it does.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any):
        super().__init__(vllm_config, role, kv_cache_config)
        _logging_as_the_engine()
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._store: Store | None = None
        self._counted: dict[tuple[str, str], int] = {}
        self.failures = Failures()
        self._refused = ""
        try:
            self._prepare()
        except Refused as refused:
            self._refuse(refused.text)
        except Exception as error:  # whatever it is, the engine goes on
            _log.exception("kvonce: cannot start")
            self._refuse(f"kvonce: cannot start: {error}")

    def _prepare(self) -> None:
        transfer, parallel = self._kv_transfer_config, self._vllm_config.parallel_config
        settings = Settings.parse(transfer.kv_connector_extra_config, ignore=ENGINE_KEYS)
        if not transfer.is_kv_producer:
            settings = dataclasses.replace(settings, role="read")
        elif not transfer.is_kv_consumer:
            settings = dataclasses.replace(settings, role="write")
        self._settings = settings
        on_scheduler = self.role == KVConnectorRole.SCHEDULER
        self._rank = 0 if on_scheduler else parallel.rank % parallel.tensor_parallel_size
        facts = facts_of(self._vllm_config, self._kv_cache_config, self._rank)
        self._plan = make_plan(self._kv_cache_config.kv_cache_groups, facts, settings.shards)
        settings.check_pools(sorted({pool.name.partition(".")[0] for pool in self._plan.pools}))
        self._identity = identity_of(self._vllm_config, facts, self._plan, settings)
        if on_scheduler:
            self._prepare_scheduler()

    def _prepare_scheduler(self) -> None:
        transfer = self._kv_transfer_config
        self._store = Store(self._plan, self._settings, self._identity, str(transfer.engine_id), "scheduler")
        self.failures = Failures(self._store.counters)
        events = getattr(self._vllm_config, "kv_events_config", None)
        self._scheduler = SchedulerSide(
            self._plan,
            self._settings,
            self._store.epochs,
            self._store.release,
            self._store.counters,
            self._vllm_config.parallel_config.tensor_parallel_size,
            self._store.cause,
            bool(events is not None and events.enable_kv_cache_events),
            failures=self.failures,
            connected=lambda: self._store.link.connected,
        )
        self._store.settle(START_SECONDS)
        _log.info(
            "kvonce: pages of %d tokens; pools %s; store %s, role %s",
            self._plan.page_tokens,
            ", ".join(f"{pool.name} ({'x'.join(map(str, pool.shard.counts))} shards)" for pool in self._plan.pools),
            self._settings.store,
            self._settings.role,
        )
        if self._settings.reads and transfer.kv_load_failure_policy == "fail":
            _log.warning(
                'kvonce: kv_load_failure_policy is "fail": a page that is lost between lookup and load ends its request with '
                'an error; set it to "recompute".'
            )

    def _refuse(self, text: str) -> None:
        self._refused = text
        if self.role == KVConnectorRole.SCHEDULER or self._rank_or_zero() == 0:
            _log.error("%s The engine runs without kvonce.", text)

    def _rank_or_zero(self) -> int:
        return getattr(self, "_rank", 0)

    # -- both sides ----------------------------------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: a save that is dropped is a miss."""
        return False

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvonceStats:
        """Statistics from what travelled between processes."""
        return KvonceStats(dict(data)) if data else KvonceStats()

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues) -> KvonceProm:
        """Counters in vLLM's Prometheus page."""
        return KvonceProm(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @guarded()
    def get_kv_connector_stats(self) -> KvonceStats | None:
        """What was counted in this process since the last call."""
        if self._store is None:
            return None
        stats = KvonceStats.since(self._store.counters, self._counted)
        if stats.is_empty():
            return None
        self._counted = self._store.counters.snapshot()
        return stats

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()

    @guarded(after=_close)
    def shutdown(self) -> None:
        """Ends the connection; saves that are running end first."""
        if self._worker is not None:
            self._worker.wait(CLOSE_SECONDS)
        self._close()

    # -- scheduler -----------------------------------------------------------------------------------------------------

    # Whatever goes wrong in a hook, the engine hears that there is nothing to load and nothing to do, and the request is left alone.

    def _disown(self, request: Any, *_: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.disown(request)

    def _not_planned(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._scheduler is not None:
            self._scheduler.not_planned(request, num_external_tokens)

    def _forget(self, request: Any, *_: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.forget(request)

    def _switch_off(self, *_: Any) -> None:
        # Without blocks that are kept a save may read another request's; after new weights nothing older may be used.
        if self._scheduler is not None:
            self._scheduler.switch_off("kvonce: a call that must not fail has failed, see above.")

    @guarded(after=_switch_off)
    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Blocks that are read are kept by the pool's reference counts."""
        if self._scheduler is not None:
            self._scheduler.bind_block_pool(gpu_block_pool)

    @guarded(after=_disown)
    def on_new_request(self, request: Any) -> None:
        """Remembers it."""
        if self._scheduler is not None:
            self._scheduler.track(request)

    @guarded(lambda: (0, False), after=_disown)
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How much more than the engine holds can be restored; None while the store is being asked."""
        if self._scheduler is None:
            return 0, False
        return self._scheduler.matched(request, num_computed_tokens)

    @guarded(after=_not_planned)
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plans the load into the blocks that the engine gave it."""
        if self._scheduler is not None:
            tables = blocks.get_block_ids() if num_external_tokens > 0 else ()
            self._scheduler.allocated(request, tables, num_external_tokens)

    @guarded(dict)
    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        """All that the store holds is in the host's memory."""
        from vllm.v1.metrics.cache_hit_source import CacheHitSource

        return {CacheHitSource.HOST: num_external_tokens} if num_external_tokens else {}

    @guarded(lambda: KvonceMetadata(Step()))
    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """This step's loads and saves."""
        return KvonceMetadata(self._scheduler.step(scheduler_output) if self._scheduler is not None else Step())

    def update_connector_output(self, connector_output: Any) -> None:
        """What the ranks have done."""
        if self._scheduler is None:
            return
        self._saves_done(connector_output)
        self._loads_done(connector_output)
        self._sent(connector_output)

    @guarded()
    def _saves_done(self, connector_output: Any) -> None:
        meta = connector_output.kv_connector_worker_meta
        if isinstance(meta, KvonceWorkerMetadata):
            self._scheduler.done(meta.done)

    @guarded()
    def _loads_done(self, connector_output: Any) -> None:
        failed = getattr(connector_output, "failed_recving", None) or ()
        self._scheduler.received(connector_output.finished_recving or (), failed)

    @guarded()
    def _sent(self, connector_output: Any) -> None:
        self._scheduler.sent(connector_output.finished_sending or ())

    @guarded(lambda: (False, None), after=_forget)
    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """True while saves of the request are running: its blocks stay until they are read."""
        return (self._scheduler is not None and self._scheduler.finished(request)), None

    @guarded(lambda: (False, None), after=_forget)
    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As request_finished, for models of several cache groups."""
        return self.request_finished(request, [])

    @guarded(lambda: False)
    def has_pending_push_work(self) -> bool:
        """The engine goes on stepping until it has heard of the end of every save."""
        return self._scheduler is not None and self._scheduler.busy

    @guarded(lambda: False)
    def has_pending_block_frees(self) -> bool:
        """True while blocks are only waiting for their saves."""
        return self._scheduler is not None and self._scheduler.frees_soon

    @guarded(lambda: True, after=_switch_off)
    def reset_cache(self) -> bool | None:
        """New weights, for all that vLLM tells: opens a weight epoch. The pages of the old one stay for other engines."""
        return self._scheduler.reset() if self._scheduler is not None else True

    @guarded(tuple)
    def take_events(self) -> Iterable[Any]:
        """KV events of pages that all ranks have stored. The store's evictions are not among them."""
        if self._scheduler is None or not (self._scheduler.events or self._scheduler.cleared):
            return ()
        from vllm.distributed.kv_events import MEDIUM_CPU, AllBlocksCleared, BlockStored
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        events: list[Any] = [AllBlocksCleared()] if self._scheduler.cleared else []
        stored, self._scheduler.events, self._scheduler.cleared = self._scheduler.events, [], False
        for found in stored:
            lora = found.lora
            events.append(
                BlockStored(
                    block_hashes=[maybe_convert_block_hash(page) for page in found.hashes],
                    parent_block_hash=maybe_convert_block_hash(found.parent) if found.parent else None,
                    token_ids=found.tokens,
                    block_size=self._plan.page_tokens,
                    lora_id=lora.lora_int_id if lora else None,
                    medium=MEDIUM_CPU,
                    lora_name=lora.lora_name if lora else None,
                )
            )
        return events

    # -- worker --------------------------------------------------------------------------------------------------------

    def _takes_no_part(self, *_: Any) -> None:
        self._worker = WorkerSide(Settings(), None, Counters(), self._refused or "kvonce: a rank cannot start, see its log.")

    @guarded(after=_takes_no_part)
    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The cache tensors of this rank: from here on it takes part."""
        if not self._refused:
            try:
                groups = {pool.group: pool.layers for pool in self._plan.pools}
                rows = {group: layer_rows(layers, kv_caches, self._plan.blocks) for group, layers in groups.items()}
                engine_id = str(self._kv_transfer_config.engine_id)
                self._store = Store(self._plan, self._settings, self._identity, engine_id, self._rank, rows)
                self.failures = Failures(self._store.counters)
                self._caches = kv_caches  # the memory must live as long as it is lent
            except Refused as refused:
                self._refuse(refused.text)
            except Exception as error:
                _log.exception("kvonce: cannot start")
                self._refuse(f"kvonce: cannot start: {error}")
        if self._store is None:
            self._takes_no_part()
        else:
            store = self._store
            self._worker = WorkerSide(
                self._settings, store.epochs, store.counters, failures=self.failures, connected=lambda: store.link.connected
            )
            store.settle(START_SECONDS)

    def _step(self) -> Step:
        return self._get_connector_metadata().step

    def _no_loads(self, *_: Any, **__: Any) -> None:
        if self._worker is not None:
            self._worker.no_loads(self._step())

    def _no_saves(self, *_: Any) -> None:
        if self._worker is not None:
            self._worker.no_saves(self._step())

    @guarded()
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Called before each step's forward. Blocks of saves are kept by reference: nothing has to be waited for."""
        if self._worker is not None:
            self._worker.begin(kv_connector_metadata.step)

    @guarded(after=_no_loads)
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Starts this step's loads, which end between later steps."""
        if self._worker is not None:
            self._worker.start_loads(self._step())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: requests wait for their loads outside of the forward."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: whole blocks are saved when the forward is over."""

    @guarded(after=_no_saves)
    def wait_for_save(self) -> None:
        """Starts this step's saves; waits for none."""
        if self._worker is not None:
            self._worker.start_saves(self._step())

    @guarded(KVConnectorTransferResults)
    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Requests whose loads or saves have ended."""
        if self._worker is None:
            return KVConnectorTransferResults()
        results = self._worker.results()
        return KVConnectorTransferResults(results.sent, results.received, results.failed)

    @guarded(lambda: (None, None))
    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """As get_transfer_results, for callers that do not know it: they hear of no failure."""
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending or None, results.finished_recving or None

    @guarded()
    def build_connector_worker_meta(self) -> KvonceWorkerMetadata | None:
        """Saves that have ended on this rank."""
        if self._worker is None:
            return None
        done = self._worker.take_done()
        return KvonceWorkerMetadata(done) if done else None


def _register() -> None:
    # MultiConnector finds the class of a child's statistics by name alone.
    try:
        KVConnectorFactory.register_connector("KvonceConnector", "kvonce.vllm", "KvonceConnector")
    except (ValueError, AttributeError, TypeError):
        pass  # registered already, or a version that does not register in this way


_register()
