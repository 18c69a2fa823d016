# SPDX-License-Identifier: Apache-2.0
"""Which layers of a batch of loads are in place: what the forward waits on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class _Batch:
    def __init__(self, layers: int, deadline: float):
        self.done = [False] * layers
        self.left = layers
        self.failed: BaseException | None = None
        self.deadline = deadline


class LayerCounter:
    """Takes the place of SGLang's LayerWiseLoadCounter, which waits without end for a layer that never comes.

    A failed layer does not raise into the forward that waits for it: the forward runs on whatever the slots hold, and
    finish() tells afterwards. limit: seconds after which a batch has failed, whatever became of its thread.
    """

    def __init__(self, num_layers: int, limit: float, clock: Callable[[], float] = time.monotonic):
        self.num_layers = num_layers
        self.producer_index = -1
        self.consumer_index = -1
        self.on_layer_ready: Callable[[int, int], None] | None = None  # SGLang's field
        self._limit = limit
        self._clock = clock
        self._batches: dict[int, _Batch] = {}
        self._changed = threading.Condition()

    # -- the loading side ----------------------------------------------------------------------------------------------

    def update_producer(self) -> int:
        """Opens a batch; its index."""
        with self._changed:
            self.producer_index += 1
            self._batches[self.producer_index] = _Batch(self.num_layers, self._clock() + self._limit)
            return self.producer_index

    def complete(self, index: int, layer: int) -> None:
        """This layer of the batch is in place. Ignored once the batch has failed or was taken back."""
        with self._changed:
            batch = self._batches.get(index)
            if batch is not None and batch.failed is None and not batch.done[layer]:
                batch.done[layer] = True
                batch.left -= 1
                self._changed.notify_all()

    def fail(self, index: int, error: BaseException) -> None:
        """What is not in place will not come. The first error stays."""
        with self._changed:
            batch = self._batches.get(index)
            if batch is not None and batch.failed is None and batch.left:
                batch.failed = error
                self._changed.notify_all()

    def error(self, index: int) -> BaseException | None:
        """Why the batch failed; None while it has not."""
        with self._changed:
            batch = self._batches.get(index)
            return batch.failed if batch is not None else None

    # -- the forward's side --------------------------------------------------------------------------------------------

    def set_consumer(self, index: int) -> None:
        """The batch that the coming forward reads; -1: none."""
        self.consumer_index = index

    def wait_until(self, threshold: int) -> None:
        """Returns when this layer of the consumer's batch is in place, or will not come; at the batch's deadline at last."""
        index = self.consumer_index
        with self._changed:
            batch = self._batches.get(index)
            if batch is None:
                return
            self._wait(batch, lambda: batch.done[threshold])
        if self.on_layer_ready is not None:
            self.on_layer_ready(index, threshold)

    def finish(self, index: int) -> bool:
        """Waits for all layers of the batch and forgets it. True when all are in place (or there is no such batch)."""
        with self._changed:
            batch = self._batches.get(index)
            if batch is None:
                return True
            self._wait(batch, lambda: batch.left == 0)
            del self._batches[index]
            return batch.left == 0

    def reset(self) -> None:
        """Forgets all batches; who waits returns."""
        with self._changed:
            for batch in self._batches.values():
                batch.failed = batch.failed or RuntimeError("reset")
            self._batches.clear()
            self.producer_index = self.consumer_index = -1
            self._changed.notify_all()

    def _wait(self, batch: _Batch, ready: Callable[[], bool]) -> None:
        while batch.failed is None and not ready():
            left = batch.deadline - self._clock()
            if left <= 0:
                batch.failed = TimeoutError("a layer was not loaded by the batch's deadline")
                self._changed.notify_all()
                return
            self._changed.wait(min(left, 1.0))
