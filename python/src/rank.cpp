// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <mutex>

#include "python/src/futures.hpp"
#include "python/src/lease.hpp"
#include "python/src/values.hpp"

namespace kvonce::python {
namespace {

struct PyRank {
  RankPtr box;
};
struct PyPool {
  PoolPtr state;
};
/// kvonce.Component: a name and the arrays of its layers.
struct PyComponent {
  std::string name;
  nb::list layers;
};
class PyEvent {
 public:
  PyEvent() : event_(Event::make()) {}
  ~PyEvent() {
    // What waits for it belongs to threads that a child does not have.
    if (foreign(pid_)) new Event(std::move(event_));
  }
  PyEvent(const PyEvent&) = delete;
  PyEvent& operator=(const PyEvent&) = delete;
  const Event& use() const {
    stay_when_ending();
    if (pid_ != getpid()) raise_forked();
    return event_;
  }

 private:
  Event event_;
  pid_t pid_ = getpid();
};

// A function in Python that is asked whether something is ready takes the interpreter's lock each time: not more often than this.
constexpr std::chrono::microseconds kAskAgain{500};

/// A function that answers true when rows may be touched. Asked from threads of kvonce, one at a time. One that raises is told of
/// once and never asked again: it ends its operation, which would wait for nothing.
class AskedFunction {
 public:
  explicit AskedFunction(nb::handle function) : function_(function) {}
  bool ready() {
    if (failed() || Clock::now() < next_) return false;
    int truth = 0;
    locked([&] {
      PyObject* const answer = PyObject_CallNoArgs(function_.get().ptr());
      truth = answer == nullptr ? -1 : PyObject_IsTrue(answer);
      if (truth < 0) PyErr_WriteUnraisable(function_.get().ptr());
      Py_XDECREF(answer);
    });
    next_ = Clock::now() + kAskAgain;
    if (truth < 0) fail();
    return truth == 1;
  }
  /// The operation has begun, and may have failed since.
  void begun(std::function<void()> cancel) {
    {
      const std::lock_guard lock(mutex_);
      cancel_ = cancel;
      if (!failed_) return;
    }
    cancel();
  }

 private:
  bool failed() {
    const std::lock_guard lock(mutex_);
    return failed_;
  }
  void fail() {
    std::function<void()> cancel;
    {
      const std::lock_guard lock(mutex_);
      failed_ = true;
      cancel = cancel_;
    }
    if (cancel) cancel();
  }

  SharedObject function_;
  Clock::time_point next_{};
  std::mutex mutex_;
  std::function<void()> cancel_;
  bool failed_ = false;
};

/// What a put or load waits for.
struct After {
  Event event;
  std::shared_ptr<AskedFunction> asked;

  explicit After(nb::handle after) {
    if (after.is_none()) return;
    if (const PyEvent* const known = bound<PyEvent>(after)) {
      event = known->use();
      return;
    }
    if (PyCallable_Check(after.ptr()) == 0)
      raise_bad("after: must be None, a kvonce.Event or a function that answers True when ready");
    asked = std::make_shared<AskedFunction>(after);
    event = Event([function = asked] { return function->ready(); });
  }
  template <class Op>
  void begun(const std::shared_ptr<Op>& operation) const {
    if (!asked) return;
    asked->begun([weak = std::weak_ptr<Op>(operation)] {
      if (const auto waiting = weak.lock()) waiting->cancel();
    });
  }
};

AckLevel level_of(const std::string& level) {
  for (const AckLevel known : {AckLevel::memory, AckLevel::disk, AckLevel::replicated})
    if (level == to_string(known)) return known;
  raise_bad("level is '" + level + "': must be 'memory', 'disk' or 'replicated'");
}

/// Index on each axis, from a flat index or a tuple; how many there are comes from the group.
std::optional<Coordinates> shard_of(nb::handle shard, const ShardCounts& counts, const std::string& pool) {
  if (shard.is_none()) return {};
  const auto part = [](std::uint64_t index, std::uint16_t of) {
    return AxisPart{static_cast<std::uint16_t>(std::min<std::uint64_t>(index, 65'535)), of};
  };
  if (PyTuple_Check(shard.ptr()) || PyList_Check(shard.ptr())) {
    const auto indices = axes_of<std::uint64_t>(shard, "pool '" + pool + "': shard");
    return Coordinates{part(indices[0], counts.tp), part(indices[1], counts.pp), part(indices[2], counts.cp)};
  }
  std::uint64_t flat = 0;
  if (!nb::try_cast(shard, flat) || flat >= counts.count()) {
    PyErr_Clear();
    raise_bad("pool '" + pool + "': shard is " + shown(shard) + ": must be None, (tp, pp, cp), or a flat index below " +
              std::to_string(counts.count()));
  }
  return Coordinates{part(flat % counts.tp, counts.tp), part(flat / counts.tp % counts.pp, counts.pp),
                     part(flat / counts.tp / counts.pp, counts.cp)};
}

PyPool register_pool(const PyRank& self, nb::handle given_name, nb::handle components, nb::handle given_rows, nb::handle shard,
                     nb::handle given_unit, nb::handle given_memory, nb::handle given_device, double timeout) {
  self.box->use();
  const auto time = milliseconds(timeout, "timeout");
  const std::string name = text_of(given_name, "name");
  const std::string of_pool = "pool '" + name + "': ";
  if (PySequence_Check(components.ptr()) == 0)
    raise_bad(of_pool + "components is " + shown(components) + ": must be a list of kvonce.Component");
  std::optional<std::uint64_t> rows;
  if (!given_rows.is_none()) rows = integer_of<std::uint64_t>(given_rows, of_pool + "rows");
  const auto unit = integer_of<std::uint32_t>(given_unit, of_pool + "unit");
  const std::string memory = text_of(given_memory, of_pool + "memory");
  const auto device = integer_of<std::int32_t>(given_device, of_pool + "device");
  if (unit < 1) raise_bad("pool '" + name + "': unit is 0: must be 1 or more");
  if (memory != "host" && memory != "hip") raise_bad("pool '" + name + "': memory is '" + memory + "': must be 'host' or 'hip'");
  PoolSpec spec;
  spec.name = name;
  spec.memory = memory == "hip" ? MemoryKind::hip : MemoryKind::host;
  spec.device = device;
  spec.shard = shard_of(shard, self.box->group().shards_of(name), name);
  std::optional<std::uint64_t> found = rows;
  std::vector<std::unique_ptr<Keeper>> keepers;
  auto state = std::make_shared<PoolState>();
  for (const nb::handle item : nb::tuple(nb::borrow(components))) {
    const PyComponent* const component = bound<PyComponent>(item);
    if (component == nullptr) raise_bad(of_pool + "components has " + shown(item) + ": must be a list of kvonce.Component");
    Component& made = spec.components.emplace_back();
    made.name = component->name;
    const nb::tuple layers(component->layers);  // a layer's own code may change the list
    for (const nb::handle layer : layers) {
      const std::string what = "pool '" + name + "', component '" + made.name + "', layer " + std::to_string(made.layers.size());
      Memory read = read_layer(layer, spec.memory == MemoryKind::hip, what);
      made.layers.push_back(read.buffer);
      state->object_bytes += read.buffer.row_bytes;
      if (read.keeper) keepers.push_back(std::move(read.keeper));
      if (read.rows == 0) continue;
      if (!found) found = read.rows;
      const bool fits = rows ? read.rows >= *rows : read.rows == *found;
      if (!fits)
        raise_bad(what + " has " + std::to_string(read.rows) + " rows, and " +
                  (rows ? "rows is " : "the layers before it have ") + std::to_string(*found));
    }
    state->layers = std::max(state->layers, static_cast<std::uint32_t>(made.layers.size()));
  }
  if (!found && !spec.components.empty())
    raise_bad("pool '" + name + "': rows must be given where no layer tells how many it has");
  spec.rows = found.value_or(0);
  auto registered = ask([rank = self.box->shared(), spec, time] { return rank->register_pool(spec, time); });
  check(registered.error);
  self.box->keep(registered.value, std::move(keepers));
  state->rank = self.box;
  state->handle = registered.value;
  state->name = name;
  state->rows = spec.rows;
  state->unit = unit;
  return {state};
}

void unregister(const PyPool& self, double timeout) {
  const PoolState& pool = *self.state;
  const auto rank = pool.rank->shared();
  const auto time = milliseconds(timeout, "timeout", kAnyTime);
  if (pool.unregistered.load()) return;
  end_in_slices(time, "pool '" + pool.name + "': rows are still lent",
                [&](std::chrono::milliseconds slice) { return rank->unregister_pool(pool.handle, slice); });
  self.state->unregistered.store(true);
  pool.rank->forget(pool.handle);
}

/// Items of a batch, in the order of pages, then pools, from rows[pool] -> index array.
struct Batch {
  std::shared_ptr<ItemMap> map = std::make_shared<ItemMap>();
  std::vector<std::vector<std::int64_t>> rows;
  std::size_t items = 0;

  Batch(const RankBox& rank, nb::handle given, std::size_t pages) {
    map->pages = pages;
    for (const auto& [key, indices] : own_copy(dict_of(given, "rows", "a dict of kvonce.Pool to row indices"))) {
      PoolPtr pool = pool_of(key);
      if (pool->rank.get() != &rank) raise_bad("pool '" + pool->name + "' belongs to another rank");
      if (pool->unregistered.load()) raise_closed(("pool '" + pool->name + "'").c_str());
      rows.push_back(read_rows(indices, pages, pool->unit, "rows of pool '" + pool->name + "'"));
      map->pools.push_back(std::move(pool));
    }
    map->items.assign(map->pools.size() * pages, -1);
  }
  template <class Add>
  void each(const Add& add) {
    for (std::size_t p = 0; p < map->pages; ++p) {
      for (std::size_t k = 0; k < rows.size(); ++k) {
        if (rows[k][p] < 0) continue;
        map->items[k * map->pages + p] = static_cast<std::int32_t>(items++);
        add(p, map->pools[k]->handle, static_cast<std::uint64_t>(rows[k][p]));
      }
    }
  }
};

nb::object put(const PyRank& self, nb::handle pages, nb::handle rows, nb::handle parent, nb::handle first_depth, nb::handle after,
               nb::handle level, nb::handle timeout) {
  Rank& rank = self.box->use();
  PutBatch batch;
  batch.pages = read_pages(pages);
  if (!parent.is_none()) batch.parent = read_page(parent, "parent");
  batch.first_depth = integer_of<std::uint32_t>(first_depth, "first_depth");
  Batch items(*self.box, rows, batch.pages.size());
  batch.items.reserve(batch.pages.size() * items.rows.size());
  items.each([&](std::size_t page, PoolHandle pool, std::uint64_t row) {
    batch.items.push_back({static_cast<std::uint32_t>(page), pool, row});
  });
  const auto done = std::make_shared<Done>();
  const After waits(after);
  PutOptions options{waits.event, level_of(text_of(level, "level")), seconds_of(timeout, "timeout"), tell(done)};
  auto started = unlocked([&] { return rank.put(std::move(batch), std::move(options)); });
  check(started.error);
  waits.begun(started.value);
  return nb::cast(new PutFuture(self.box, std::move(started.value), done, items.map), nb::rv_policy::take_ownership);
}

nb::object load(const PyRank& self, nb::handle lease, nb::handle pages, nb::handle rows, nb::handle layer_begin,
                nb::handle layer_end, nb::handle layers_per_group, nb::handle after, nb::handle timeout, nb::handle progress) {
  Rank& rank = self.box->use();
  const LeaseId id = lease_of(lease);
  const std::vector<PageHash> hashes = read_pages(pages);
  Batch batch(*self.box, rows, hashes.size());
  std::vector<LoadItem> items;
  items.reserve(hashes.size() * batch.rows.size());
  batch.each([&](std::size_t page, PoolHandle pool, std::uint64_t row) { items.push_back({hashes[page], pool, row}); });
  const auto done = std::make_shared<Done>();
  LoadOptions options;
  options.layer_begin = integer_of<std::uint32_t>(layer_begin, "layer_begin");
  if (!layer_end.is_none()) options.layer_end = integer_of<std::uint32_t>(layer_end, "layer_end");
  options.layers_per_group = integer_of<std::uint32_t>(layers_per_group, "layers_per_group");
  const After waits(after);
  options.after = waits.event;
  options.timeout = seconds_of(timeout, "timeout");
  options.completion = tell(done);
  if (!progress.is_none()) {
    if (PyCallable_Check(progress.ptr()) == 0)
      raise_bad("progress is " + shown(progress) + ": must be None or a function of the layers that are done");
    options.progress = [call = std::make_shared<SharedObject>(progress)](std::uint32_t layers) {
      post([call, layers] {
        const nb::handle function = call->get();
        PyObject* const answer = PyObject_CallFunction(function.ptr(), "I", layers);
        if (answer == nullptr) PyErr_WriteUnraisable(function.ptr());
        Py_XDECREF(answer);
      });
    };
  }
  auto started = unlocked([&] { return rank.load(id, std::move(items), std::move(options)); });
  check(started.error);
  waits.begun(started.value);
  return nb::cast(new LoadFuture(self.box, std::move(started.value), done, batch.map), nb::rv_policy::take_ownership);
}

nb::bytes exists(const PyRank& self, nb::handle given_pool, nb::handle pages) {
  Rank& rank = self.box->use();
  const PyPool* const pool = bound<PyPool>(given_pool);
  if (pool == nullptr) raise_bad("pool is " + shown(given_pool) + ": must be a kvonce.Pool, as register_pool gives it");
  if (pool->state->rank != self.box) raise_bad("pool '" + pool->state->name + "' belongs to another rank");
  auto result = rank.exists(pool->state->handle, read_pages(pages));
  check(result.error);
  return nb::bytes(result.value.data(), result.value.size());
}

void bind_memory(nb::module_& module) {
  nb::class_<Layer>(module, "Layer", "Memory of one layer as pointer and sizes. Row r starts at ptr + r * row_stride.")
      .def(
          "__init__",
          [](Layer* self, std::uint64_t ptr, std::uint64_t row_stride, std::uint64_t row_bytes, std::uint64_t rows) {
            new (self) Layer{ptr, row_stride, row_bytes, rows};
          },
          nb::arg("ptr"), nb::arg("row_stride"), nb::arg("row_bytes"), nb::arg("rows") = 0,
          "ptr: address as an int; the caller keeps the memory until the pool is unregistered. row_stride, row_bytes: bytes. "
          "rows: 0: told to register_pool.")
      .def_ro("ptr", &Layer::ptr)
      .def_ro("row_stride", &Layer::row_stride)
      .def_ro("row_bytes", &Layer::row_bytes)
      .def_ro("rows", &Layer::rows);
  nb::class_<PyComponent>(module, "Component", "K, V, latent, temporal, conv ...: one array per layer.")
      .def(
          "__init__",
          [](PyComponent* self, nb::handle given_name, nb::handle layers) {
            std::string name = text_of(given_name, "name");
            const nb::object iterator = nb::steal(PyObject_GetIter(layers.ptr()));
            if (!iterator.is_valid()) {
              forget_exception();
              raise_bad("component '" + name + "': layers is " + shown(layers) +
                        ": must be a list of arrays, one for each layer");
            }
            new (self) PyComponent{std::move(name), nb::list(iterator)};
          },
          nb::arg("name").none(), nb::arg("layers").none(),
          nb::sig("def __init__(self, name: str, layers: collections.abc.Iterable[Layer | typing.Any]) -> None"),
          "layers: arrays (buffer protocol, DLPack, torch tensors) with rows along the first axis, each row contiguous and "
          "writable; or kvonce.Layer.")
      .def_ro("name", &PyComponent::name)
      .def_prop_ro("layers", [](const PyComponent& c) { return c.layers; });
  nb::class_<PyEvent>(module, "Event", "Something that a put or load waits for before it touches a row. Fires once.")
      .def(nb::init<>())
      .def(
          "signal",
          [](const PyEvent& self) {
            const Event event = self.use();
            unlocked([&] { event.signal(); });
          },
          "Fires it. Everything written before is seen by the copies that it lets go.")
      .def(
          "ready", [](const PyEvent& self) { return self.use().ready(); }, "Whether it has fired.");
  nb::class_<Lease>(module, "Lease",
                    "Keeps looked-up pages from eviction. bytes(lease) are 16 bytes that other processes of the same engine may "
                    "use instead of it.")
      .def(
          "__init__", [](Lease* self, nb::handle id) { new (self) Lease{lease_of(id)}; }, nb::arg("id").none(),
          nb::sig("def __init__(self, id: bytes) -> None"), "id: bytes(lease) of another one.")
      .def("__bytes__",
           [](const Lease& self) {
             const auto bytes = self.bytes();
             return nb::bytes(bytes.data(), bytes.size());
           })
      .def("__reduce__", [](nb::handle self) { return nb::make_tuple(self.type(), nb::make_tuple(self.attr("__bytes__")())); })
      .def(
          "__eq__",
          [](const Lease& self, nb::handle other) {
            const Lease* const lease = bound<Lease>(other);
            return lease != nullptr && lease->id == self.id;
          },
          nb::arg("other").none(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const Lease& self) { return static_cast<Py_ssize_t>(std::hash<LeaseId>{}(self.id) >> 1U); })
      .def("__repr__", [](const Lease& self) {
        const auto bytes = self.bytes();
        return "<kvonce.Lease " + nb::cast<std::string>(nb::bytes(bytes.data(), bytes.size()).attr("hex")()) + ">";
      });
}

}  // namespace

LeaseId lease_of(nb::handle lease) {
  if (const Lease* const known = bound<Lease>(lease)) return known->id;
  if (!PyBytes_Check(lease.ptr()) || PyBytes_Size(lease.ptr()) != 16)
    raise_bad("lease is " + shown(lease) + ": must be a kvonce.Lease, as a lookup gives it, or its 16 bytes");
  LeaseId id;
  std::memcpy(&id.high, PyBytes_AsString(lease.ptr()), 8);
  std::memcpy(&id.low, PyBytes_AsString(lease.ptr()) + 8, 8);
  return id;
}

PoolPtr pool_of(nb::handle pool, const std::string& name) {
  const PyPool* const known = bound<PyPool>(pool);
  if (known == nullptr) raise_bad(name + " is " + shown(pool) + ": must be a kvonce.Pool, as register_pool gives it");
  return known->state;
}

nb::object make_rank(RankPtr rank) { return nb::cast(PyRank{std::move(rank)}); }

void bind_rank(nb::module_& module) {
  bind_memory(module);
  nb::class_<PyPool>(module, "Pool", "This rank's memory for one kind of object.")
      .def_prop_ro("name", [](const PyPool& p) { return p.state->name; })
      .def_prop_ro(
          "rows", [](const PyPool& p) { return p.state->rows; }, "Rows of every layer.")
      .def_prop_ro(
          "object_bytes", [](const PyPool& p) { return p.state->object_bytes; },
          "Bytes of one page in this pool: its row in every layer.")
      .def_prop_ro(
          "layers", [](const PyPool& p) { return p.state->layers; }, "Layers of the longest component.")
      .def_prop_ro(
          "unit", [](const PyPool& p) { return p.state->unit; }, "Entries of a rows array for each page.")
      .def("unregister", &unregister, nb::arg("timeout") = 30.0, nb::sig("def unregister(self, timeout: float = 30.0) -> None"),
           "Refuses new work at once and waits until no row is lent; then the memory is let go. Raises Deadline after `timeout` "
           "seconds: the pool\n"
           "is still closing, its memory must stay; call again.")
      .def("__repr__",
           [](const PyPool& p) { return "<kvonce.Pool '" + p.state->name + "' of " + std::to_string(p.state->rows) + " rows>"; });
  nb::class_<PyRank>(module, "Rank", "One rank of the engine in this process: its pools, puts and loads.")
      .def("register_pool", &register_pool, nb::arg("name").none(), nb::arg("components").none(), nb::arg("rows") = nb::none(),
           nb::arg("shard") = nb::none(), nb::arg("unit").none() = 1, nb::arg("memory").none() = "host",
           nb::arg("device").none() = 0, nb::arg("timeout") = 10.0,
           nb::sig("def register_pool(self, name: str, components: collections.abc.Sequence[Component], rows: int | None = None,"
                   " shard: int | tuple[int, int, int] | None = None, unit: int = 1, memory: str = 'host', device: int = 0, "
                   "timeout: float = 10.0) -> Pool"),
           "Registers memory for a pool of the group. The object of a page is its row in every layer of every component.\n"
           "rows: of every layer; None: as long as the arrays. shard: which part of the content this rank holds: None: by its "
           "place on every axis;\n"
           "(tp, pp, cp): index on each axis; n: flat index; ranks with the same shard hold identical objects. unit: rows arrays "
           "given later hold so many\n"
           "entries per page (token slots); of these the first is read, divided by unit. The arrays stay referenced until the "
           "pool is unregistered.\n"
           "Raises BadArgument.")
      .def("put", &put, nb::arg("pages").none(), nb::arg("rows").none(), nb::arg("parent") = nb::none(),
           nb::arg("first_depth").none() = 0, nb::arg("after") = nb::none(), nb::arg("level").none() = "memory",
           nb::arg("timeout").none() = 30.0,
           nb::sig("def put(self, pages: Pages, rows: dict[Pool, Indices], parent: Page | None = None, first_depth: int = 0,"
                   " after: Event | collections.abc.Callable[[], bool] | None = None, level: str = 'memory', timeout: float = "
                   "30.0) -> PutFuture"),
           "Offers pages of one chain, each the parent of the next. rows[pool]: one index per page (times the pool's unit), "
           "negative: the page has no\n"
           "row in that pool. parent, first_depth: the page before the first one, and how many there are. after: no byte of a "
           "row is read before it\n"
           "fires; a function that raises ends the put, as cancel() does. timeout: seconds. From here until the result the rows "
           "must "
           "not change.\n"
           "At most 65,536 items. Raises BadArgument, Closed.")
      .def("load", &load, nb::arg("lease").none(), nb::arg("pages").none(), nb::arg("rows").none(),
           nb::arg("layer_begin").none() = 0, nb::arg("layer_end") = nb::none(), nb::arg("layers_per_group").none() = 0,
           nb::arg("after") = nb::none(), nb::arg("timeout").none() = 30.0, nb::arg("progress") = nb::none(),
           nb::sig("def load(self, lease: Lease | bytes, pages: Pages, rows: dict[Pool, Indices], layer_begin: int = 0, "
                   "layer_end: int | None = None,"
                   " layers_per_group: int = 0, after: Event | collections.abc.Callable[[], bool] | None = None, timeout: float "
                   "= 30.0,"
                   " progress: collections.abc.Callable[[int], object] | None = None) -> LoadFuture"),
           "Copies pages that the lease covers into rows. layers_per_group: progress is told per so many layers; 0: once. "
           "progress(layers_done) is called\n"
           "on kvonce's callback thread. From here until the result the rows may be written to. Raises BadArgument, Closed.")
      .def("exists", &exists, nb::arg("pool").none(), nb::arg("pages").none(),
           nb::sig("def exists(self, pool: Pool, pages: Pages) -> bytes"),
           "One byte per page, 0 or 1, for this rank's shard. Reads the index in shared memory: waits for nobody.")
      .def_prop_ro(
          "moved_bytes", [](const PyRank& self) { return self.box->use().moved_bytes(); },
          "Bytes that this rank has moved into the store.")
      .def(
          "close", [](const PyRank& self, double timeout) { self.box->close(milliseconds(timeout, "timeout", kAnyTime)); },
          nb::arg("timeout") = 30.0, nb::sig("def close(self, timeout: float = 30.0) -> None"),
          "Unregisters all pools and ends the rank. Raises Deadline when rows are still lent after `timeout` seconds.");
}

}  // namespace kvonce::python
