# SPDX-License-Identifier: Apache-2.0
# Made by tools/python_stubs.py from the module.
"""The C++ side of kvonce."""

import enum
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Generic, Self, TypeAlias, TypeVar

_Result = TypeVar("_Result", covariant=True)

# 32 bytes, or 64 hexadecimal digits.
Page: TypeAlias = bytes | bytearray | memoryview | str
# Bytes of n * 32, an (n, 32) uint8 array, or a list of pages.
Pages: TypeAlias = Any
# An integer array (numpy, torch on the CPU, buffer protocol, DLPack), a range, or a list.
Indices: TypeAlias = Any

def version() -> str:
    """Version, commit, CAF version and kind of the build."""

class Verdict(enum.IntEnum):
    """What became of one item of a put."""

    none = 0

    stored = 1

    joined = 2

    already_stored = 3

    rejected = 4

    conflict = 5

    failed = 6

    unknown = 7

class Reason(enum.IntEnum):
    """Why; one list for puts, lookups, loads and errors."""

    none = 0

    absent = 1

    evicted = 2

    in_flight = 3

    busy = 4

    group_incomplete = 5

    store_lost = 6

    deadline = 7

    no_space = 8

    removed = 9

    unverified = 10

    level_unavailable = 11

    unknown_namespace = 12

    unknown_pool = 13

    wrong_size = 14

    row_out_of_range = 15

    lease_unknown = 16

    lease_expired = 17

    checksum_mismatch = 18

    generation_changed = 19

    canceled = 20

    copy_failed = 21

    persist_failed = 22

    closed = 23

    too_many = 24

    bad_argument = 25

REASONS: tuple[str, ...]

class PutResult:
    """What a put answered, per page and pool."""

    @property
    def succeeded(self) -> int:
        """Items that are stored now, by whomever."""

    @property
    def items(self) -> int:
        """Pages x pools that had a row."""

    @property
    def ok(self) -> bool:
        """Whether all items are stored."""

    @property
    def retry_after(self) -> float:
        """
        Seconds after which what was rejected may be tried again; 0 where nothing was.
        """

    def verdicts(self, pool: Pool | str) -> bytes:
        """
        One kvonce.Verdict value per page; 0 where the page had no row in that pool.
        """

    def reasons(self, pool: Pool | str) -> bytes:
        """One kvonce.Reason value per page; 0 where there is none."""

    def causes(self) -> dict[str, int]:
        """
        Number of items by what kept them from being stored, as 'rejected: no_space'.
        """

    def __repr__(self) -> str: ...

class LoadResult:
    """What a load answered, per page and pool."""

    @property
    def loaded(self) -> int:
        """Items whose bytes are in place and verified."""

    @property
    def items(self) -> int:
        """Pages x pools that had a row."""

    @property
    def ok(self) -> bool:
        """Whether all items were loaded."""

    def reasons(self, pool: Pool | str) -> bytes:
        """One kvonce.Reason value per page; 0: loaded, or no row in that pool."""

    def causes(self) -> dict[str, int]:
        """Number of items by the reason why they were not loaded."""

    def __repr__(self) -> str: ...

class Lookup:
    """Which prefix lengths are restorable, and why no more."""

    @property
    def pages(self) -> int:
        """Deepest restorable prefix, in pages."""

    @property
    def resident_pages(self) -> int:
        """Leading pages whose every-page pools are all there; >= pages."""

    @property
    def every_stop(self) -> bool:
        """Whether each length up to `pages` is restorable."""

    @property
    def stops(self) -> list[int]:
        """Otherwise: all restorable lengths, ascending."""

    @property
    def leased_stops(self) -> list[int]:
        """Those whose trailing pools the lease covers."""

    @property
    def lease(self) -> Lease | None:
        """
        Keeps the pages from eviction until it is released or ends; None: nothing is leased.
        """

    @property
    def lease_left(self) -> float:
        """Seconds that the lease holds from the answer on."""

    @property
    def first_missing(self) -> int:
        """The first page that is not restorable."""

    @property
    def reason(self) -> str | None:
        """Why it is not, one of kvonce.REASONS; None: all are."""

    @property
    def missing_pool(self) -> str:
        """
        The pool that lacks it, where the reason is group_incomplete; else empty. Where the pages go on but no stop does: the
        pool that keeps the stop from being legal, of those behind the prefix, that lacks the fewest objects (of equals the first).
        """

    @property
    def missing_shard(self) -> int:
        """The first shard of that pool that is not readable."""

    @property
    def retry_after(self) -> float:
        """Seconds to wait, where the reason is busy."""

    @property
    def optional_missing(self) -> list[str]:
        """Optional pools that do not cover the whole prefix."""

    def __repr__(self) -> str: ...

class Future(Generic[_Result]):
    """A result that comes later; can be awaited in asyncio."""

    def done(self) -> bool:
        """Whether the result is there."""

    def __repr__(self) -> str: ...

    def wait(self, timeout: float | None = None) -> bool:
        """
        Waits until done, at most so many seconds (None: to the call's own deadline). False when the time passed first.
        """

    def result(self, timeout: float | None = None) -> _Result:
        """
        Waits for the result. Raises Deadline when it is not there in time; the call goes on.
        """

    def cancel(self) -> None:
        """
        Ends what has not begun. The rows are back when the future is done, not before.
        """

    def add_done_callback(self, fn: Callable[[Self], object]) -> None:
        """
        Calls fn(future) once it is done, always on the one thread that kvonce keeps for that: fn should be short.
        """

    def __await__(self) -> Generator[Any, None, _Result]: ...

class LookupFuture(Future[Lookup]):
    """
    Answers a Lookup; raises StoreLost or Deadline where there is no answer.
    """

class PutFuture(Future[PutResult]):
    """Answers a PutResult. Until then the rows must not change."""

class LoadFuture(Future[LoadResult]):
    """Answers a LoadResult. Until then the rows may be written to."""

    @property
    def layers_done(self) -> int:
        """All pages' layers below this one are in place and verified."""

    def wait_layers(self, layers: int, timeout: float | None = None) -> bool:
        """
        Waits until layers_done >= layers, or the load is done. False when the time (seconds) passed first.
        """

class Layer:
    """
    Memory of one layer as pointer and sizes. Row r starts at ptr + r * row_stride.
    """

    def __init__(self, ptr: int, row_stride: int, row_bytes: int, rows: int = 0) -> None:
        """
        ptr: address as an int; the caller keeps the memory until the pool is unregistered. row_stride, row_bytes: bytes. rows: 0: told to register_pool.
        """

    @property
    def ptr(self) -> int: ...

    @property
    def row_stride(self) -> int: ...

    @property
    def row_bytes(self) -> int: ...

    @property
    def rows(self) -> int: ...

class Component:
    """K, V, latent, temporal, conv ...: one array per layer."""

    def __init__(self, name: str, layers: Iterable[Layer | Any]) -> None:
        """
        layers: arrays (buffer protocol, DLPack, torch tensors) with rows along the first axis, each row contiguous and writable; or kvonce.Layer.
        """

    @property
    def name(self) -> str: ...

    @property
    def layers(self) -> list: ...

class Event:
    """
    Something that a put or load waits for before it touches a row. Fires once.
    """

    def __init__(self) -> None: ...

    def signal(self) -> None:
        """
        Fires it. Everything written before is seen by the copies that it lets go.
        """

    def ready(self) -> bool:
        """Whether it has fired."""

class Lease:
    """
    Keeps looked-up pages from eviction. bytes(lease) are 16 bytes that other processes of the same engine may use instead of it.
    """

    def __init__(self, id: bytes) -> None:
        """id: bytes(lease) of another one."""

    def __bytes__(self) -> bytes: ...

    def __reduce__(self) -> tuple: ...

    def __eq__(self, other: object, /) -> bool: ...

    def __hash__(self) -> int: ...

    def __repr__(self) -> str: ...

class Pool:
    """This rank's memory for one kind of object."""

    @property
    def name(self) -> str: ...

    @property
    def rows(self) -> int:
        """Rows of every layer."""

    @property
    def object_bytes(self) -> int:
        """Bytes of one page in this pool: its row in every layer."""

    @property
    def layers(self) -> int:
        """Layers of the longest component."""

    @property
    def unit(self) -> int:
        """Entries of a rows array for each page."""

    def unregister(self, timeout: float = 30.0) -> None:
        """
        Refuses new work at once and waits until no row is lent; then the memory is let go. Raises Deadline after `timeout` seconds: the pool
        is still closing, its memory must stay; call again.
        """

    def __repr__(self) -> str: ...

class Rank:
    """One rank of the engine in this process: its pools, puts and loads."""

    def register_pool(self, name: str, components: Sequence[Component], rows: int | None = None, shard: int | tuple[int, int, int] | None = None, unit: int = 1, memory: str = 'host', device: int = 0, timeout: float = 10.0) -> Pool:
        """
        Registers memory for a pool of the group. The object of a page is its row in every layer of every component.
        rows: of every layer; None: as long as the arrays. shard: which part of the content this rank holds: None: by its place on every axis;
        (tp, pp, cp): index on each axis; n: flat index; ranks with the same shard hold identical objects. unit: rows arrays given later hold so many
        entries per page (token slots); of these the first is read, divided by unit. The arrays stay referenced until the pool is unregistered.
        Raises BadArgument.
        """

    def put(self, pages: Pages, rows: dict[Pool, Indices], parent: Page | None = None, first_depth: int = 0, after: Event | Callable[[], bool] | None = None, level: str = 'memory', timeout: float = 30.0) -> PutFuture:
        """
        Offers pages of one chain, each the parent of the next. rows[pool]: one index per page (times the pool's unit), negative: the page has no
        row in that pool. parent, first_depth: the page before the first one, and how many there are. after: no byte of a row is read before it
        fires; a function that raises ends the put, as cancel() does. timeout: seconds. From here until the result the rows must not change.
        At most 65,536 items. Raises BadArgument, Closed.
        """

    def load(self, lease: Lease | bytes, pages: Pages, rows: dict[Pool, Indices], layer_begin: int = 0, layer_end: int | None = None, layers_per_group: int = 0, after: Event | Callable[[], bool] | None = None, timeout: float = 30.0, progress: Callable[[int], object] | None = None) -> LoadFuture:
        """
        Copies pages that the lease covers into rows. layers_per_group: progress is told per so many layers; 0: once. progress(layers_done) is called
        on kvonce's callback thread. From here until the result the rows may be written to. Raises BadArgument, Closed.
        """

    def exists(self, pool: Pool, pages: Pages) -> bytes:
        """
        One byte per page, 0 or 1, for this rank's shard. Reads the index in shared memory: waits for nobody.
        """

    @property
    def moved_bytes(self) -> int:
        """Bytes that this rank has moved into the store."""

    def close(self, timeout: float = 30.0) -> None:
        """
        Unregisters all pools and ends the rank. Raises Deadline when rows are still lent after `timeout` seconds.
        """

class GroupPool:
    """One pool of a page group, described without memory."""

    def __init__(self, name: str, shards: tuple[int, int, int] | None = None, trailing_pages: int = 0, optional: bool = False) -> None:
        """
        shards: number of shards on each axis (tp, pp, cp); (1, 1, 1): the same bytes on all ranks; None: as many as there are ranks.
        trailing_pages: 0: a prefix needs every page of this pool; n: only its last n (sliding window, recurrent state).
        optional: a prefix is restorable without it (draft).
        """

    @property
    def name(self) -> str: ...

    @property
    def shards(self) -> tuple[int, int, int] | None: ...

    @property
    def trailing_pages(self) -> int: ...

    @property
    def optional(self) -> bool: ...

class PageStat:
    """What the store holds of one page."""

    @property
    def depth(self) -> int:
        """Pages before it in its prefix."""

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Each as a dict: pool, shard (flat index), bytes, level."""

class Namespace:
    """All that decides the bytes besides page hash, pool and shard."""

    @property
    def text(self) -> str: ...

    def group(self, name: str, pools: list[GroupPool], ranks: tuple[int, int, int] = (1, 1, 1), timeout: float = 10.0) -> Group:
        """
        Registers the pools that a prefix needs together. ranks: of the engine, on the axes (tp, pp, cp).
        """

    def stat(self, page: Page) -> PageStat | None:
        """None where the page is not there."""

    def remove(self, pages: Pages, timeout: float = 30.0) -> int:
        """Number of objects removed."""

    def clear(self, timeout: float = 30.0) -> int:
        """Removes all of the namespace. Number of objects removed."""

    def close(self, timeout: float = 10.0) -> None:
        """
        This process uses it no more: its groups mean nothing then, and no pool of a rank may be registered in it any more. What is stored stays. A store has room for 1,024 namespaces and gives the place of one that nobody has open to a new one. Idempotent.
        """

    def pools(self) -> list[dict[str, Any]]:
        """
        Each as a dict: name, shards (tp, pp, cp), object_bytes (0: not known yet).
        """

    def __repr__(self) -> str: ...

class Group:
    """The pools that a prefix of one model needs together."""

    @property
    def name(self) -> str: ...

    def rank(self, tp: int = 0, pp: int = 0, cp: int = 0) -> Rank:
        """
        This process's rank: its index on each axis; how many there are comes from the group.
        """

    def lookup(self, pages: Pages, request_id: str = '', probe: bool = False, lease_time: float = 0.0, timeout: float = 5.0) -> Lookup:
        """
        How much of this prefix is restorable, with a lease on it. pages: at most 65,536, from the first one on.
        request_id: lookups with the same one get the same answer on all ranks. probe: no lease, does not count as use.
        lease_time: seconds; 0: the store's default. Raises StoreLost, Deadline (after `timeout` seconds), Closed.
        """

    def lookup_async(self, pages: Pages, request_id: str = '', probe: bool = False, lease_time: float = 0.0, timeout: float = 5.0) -> LookupFuture:
        """As lookup, without waiting."""

    def exists(self, pool: str, shard: int, pages: Pages) -> bytes:
        """
        One byte per page, 0 or 1. Reads the index in shared memory: waits for nobody. shard: flat index.
        """

    def remove_key(self, pool: str, shard: int, page: Page, timeout: float = 30.0) -> int:
        """Removes one object. Number of objects removed."""

class Runtime:
    """Connects this process to a store, or holds one itself."""

    def __init__(self, engine_id: str, store: str = 'auto', **options: Any) -> None:
        """
        engine_id: names the serving instance that all its rank and scheduler processes share.
        store: 'auto': this user's kvonced on this host, started when none answers; 'unix:PATH'; 'embedded': in this process.
        options: the fields of RuntimeConfig (include/kvonce/config.hpp): durations in seconds, sizes as int or text ('1GiB').
        Raises BadArgument (an unknown option: with the nearest name), StoreLost, Deadline.
        """

    @property
    def engine_id(self) -> str: ...

    @property
    def closed(self) -> bool: ...

    def namespace(self, text: str, timeout: float = 10.0) -> Namespace:
        """
        Opens the namespace. The text says all that decides the bytes: model, revision, dtype, page tokens, tenant; 1 to 4,096 bytes.
        """

    def find_namespace(self, text: str, timeout: float = 10.0) -> Namespace | None:
        """
        As namespace, but one that nobody has opened yet is None, and is not made.
        """

    def epoch(self, name: str, timeout: float = 5.0) -> bytes:
        """
        16 random bytes that the store gives out once per (engine id while it is connected, name): all processes of the engine get the same.
        name: 1 to 255 bytes, as 'weights 3'; at most 1,024 names an engine. Raises StoreLost, Deadline.
        """

    @property
    def connected(self) -> bool:
        """
        False while the store is lost: calls raise StoreLost, and a connection is tried again and again.
        """

    @property
    def incarnation(self) -> int:
        """Random number of this life of the store; 0 while it is lost."""

    def wait_connected(self, timeout: float) -> bool:
        """True when connected; False when the time (seconds) passed first."""

    def stats(self, timeout: float = 2.0) -> dict[str, Any]:
        """
        Counters since the start, those that end in _now as they are; bytes are payload bytes. `verdicts` and `misses` are dicts by name. `store_answered` is False while the store is lost or slower than `timeout`: what it counts is then left out or is less than it is.
        """

    def clients(self, timeout: float = 10.0) -> list[dict[str, Any]]:
        """
        The processes that are connected to the store: pid, engine_id, read_only, ranks, open_grants, quarantined_bytes, reports (label -> {name: count}, as each gave them).
        """

    def report(self, label: str, counters: dict[str, int]) -> None:
        """
        Gives counters of this process to the store, for clients() and `kvonce stat`; they replace those of the same label, and go with the connection. No counters: the label is forgotten. At most 8 labels, 64 counters, names of 1 to 64 bytes.
        """

    @property
    def store_start(self) -> dict[str, Any]:
        """How the store came up: warm, why_cold, restored_objects."""

    def flush(self, timeout: float = 30.0, level: str = 'memory') -> None:
        """
        Waits until everything accepted so far is decided at that level. Raises Deadline after `timeout` seconds.
        """

    def clear(self, timeout: float = 30.0) -> int:
        """Removes everything from the store. Number of objects removed."""

    def release(self, lease: Lease | bytes, timeout: float = 10.0) -> None:
        """Gives a lease back; twice is no error."""

    def narrow(self, lease: Lease | bytes, pages: int, timeout: float = 10.0) -> None:
        """
        Gives back what lies behind so many pages of the prefix (0: everything).
        """

    def close(self, timeout: float = 5.0) -> None:
        """
        Open operations end with reason 'closed', then everything of this runtime stops, within `timeout` seconds. Twice is no error.
        """

    def __enter__(self) -> Runtime: ...

    def __exit__(self, *exception: object) -> None: ...
