// SPDX-License-Identifier: Apache-2.0
#include "python/src/futures.hpp"

#include <array>
#include <map>
#include <string>

#include "python/src/lease.hpp"
#include "python/src/values.hpp"

namespace kvonce::python {
namespace {

/// What a put answered; items in the order of pages, then pools.
struct PutResult {
  std::vector<PutItemResult> items;
  std::uint64_t succeeded = 0;
  ItemMapPtr map;
};
struct LoadResult {
  std::vector<Reason> items;
  std::uint64_t loaded = 0;
  ItemMapPtr map;
};

void count(nb::dict& causes, const std::string& cause) {
  const nb::str key(cause.c_str());
  const std::uint64_t before = causes.contains(key) ? nb::cast<std::uint64_t>(causes[key]) : 0;
  causes[key] = before + 1;
}

/// "rejected: no_space"; a verdict without reason alone.
std::string cause_of(const PutItemResult& item) {
  std::string cause(to_string(item.verdict));
  if (item.reason != Reason::none) cause += ": " + std::string(to_string(item.reason));
  return cause;
}

std::uint32_t retry_after_ms(const PutResult& result) {
  std::uint32_t longest = 0;
  for (const PutItemResult& item : result.items) longest = std::max(longest, item.retry_after_ms);
  return longest;
}

std::string summary(std::uint64_t good, std::size_t all, const char* done, const std::map<std::string, std::size_t>& counts) {
  std::string text = std::to_string(good) + " of " + std::to_string(all) + " " + done;
  const char* before = "; ";
  for (const auto& [cause, number] : counts) {
    text += before + cause + " " + std::to_string(number);
    before = ", ";
  }
  return text;
}

/// "7 of 8 stored; joined 3, rejected: no_space 1": what is not named was stored from this sender's bytes.
std::string summary(const PutResult& result) {
  std::map<std::string, std::size_t> counts;
  for (const PutItemResult& item : result.items)
    if (item.verdict != Verdict::stored) ++counts[cause_of(item)];
  return summary(result.succeeded, result.items.size(), "stored", counts);
}
std::string summary(const LoadResult& result) {
  std::map<std::string, std::size_t> counts;
  for (const Reason reason : result.items)
    if (reason != Reason::none) ++counts[std::string(to_string(reason))];
  return summary(result.loaded, result.items.size(), "loaded", counts);
}
std::string summary(const LookupResult& result) {
  const std::string pages = std::to_string(result.restorable_pages) + (result.restorable_pages == 1 ? " page, " : " pages, ");
  return pages + (result.reason == Reason::none ? std::string("all there") : "then " + std::string(to_string(result.reason))) +
         (result.lease ? ", leased" : "");
}

void call_back(PyObject* call, PyObject* argument) {
  PyObject* const answer = PyObject_CallFunctionObjArgs(call, argument, nullptr);
  if (answer == nullptr) PyErr_WriteUnraisable(call);
  Py_XDECREF(answer);
}

std::string optional_reason(Reason reason) { return std::string(to_string(reason)); }

}  // namespace

void Done::finish() {
  // Under the lock: what is added later is called later.
  const std::lock_guard lock(mutex_);
  done_ = true;
  for (auto& call : calls_) post(std::move(call));
  calls_.clear();
}

void Done::add(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  if (done_) post(std::move(call));
  else calls_.push_back(std::move(call));
}

Completion tell(const DonePtr& done) {
  Completion completion;
  completion.callback = [done] { done->finish(); };
  return completion;
}

std::size_t ItemMap::index_of(nb::handle pool) const {
  const bool by_name = PyUnicode_Check(pool.ptr()) != 0;
  const std::string name = by_name ? text_of(pool, "pool") : std::string();
  for (std::size_t i = 0; i < pools.size(); ++i) {
    if (by_name ? name == pools[i]->name : pool_of(pool, "pool") == pools[i]) return i;
  }
  std::string all;
  for (const PoolPtr& known : pools) all += (all.empty() ? "'" : ", '") + known->name + "'";
  raise_bad("pool is " + shown(pool) + ": must be one that the call had rows of: " + all);
}

template <class Value>
nb::bytes ItemMap::per_page(nb::handle pool, const Value& value) const {
  const std::size_t first = index_of(pool) * pages;
  std::vector<std::uint8_t> bytes(pages);
  for (std::size_t p = 0; p < pages; ++p) {
    const std::int32_t item = items[first + p];
    if (item >= 0) bytes[p] = static_cast<std::uint8_t>(value(static_cast<std::size_t>(item)));
  }
  return nb::bytes(bytes.data(), bytes.size());
}

std::optional<Clock::time_point> until_of(const std::optional<double>& timeout) {
  if (!timeout) return {};
  return Clock::now() + milliseconds(*timeout, "timeout", kAnyTime);
}

Future::~Future() {
  // The operation's own end runs no Python; but in a child its locks may be held by threads that are not there.
  if (foreign(runtime_->pid())) new std::shared_ptr<Operation>(std::move(operation_));
}

bool Future::done() const {
  check_process();
  return operation_->done();
}

bool Future::wait(std::optional<double> timeout) const {
  check_process();
  const auto until = until_of(timeout);
  if (operation_->done()) return true;
  return wait_in_slices(until, [&](std::chrono::nanoseconds time) { return operation_->wait_for(time); });
}

nb::object Future::result(std::optional<double> timeout) const {
  if (!wait(timeout))
    raise({Reason::deadline, "not done within " + number_text(*timeout) + " s; the call itself goes on to its own deadline"});
  return make_result();
}

void Future::cancel() const {
  check_process();
  unlocked([&] { cancel_operation(); });
}

void Future::add_done_callback(nb::handle self, nb::handle call) const {
  check_process();
  if (PyCallable_Check(call.ptr()) == 0) raise_bad("add_done_callback: not callable");
  PyObject* const future = self.inc_ref().ptr();
  PyObject* const function = call.inc_ref().ptr();
  done_->add([future, function] {
    call_back(function, future);
    Py_DECREF(function);
    Py_DECREF(future);
  });
}

std::string Future::repr() const {
  const std::string name = std::string("<kvonce.") + kind();
  // In a child, or at the interpreter's end, the operation is not to be touched.
  if (foreign(runtime_->pid())) return name + " of another process>";
  return name + (operation_->done() ? ": done, " : ": not done") + state(operation_->done()) + ">";
}

std::string LookupFuture::state(bool done) const {
  if (!done) return {};
  const auto& result = static_cast<LookupOperation&>(operation()).result();
  return result.error ? std::string(to_string(result.error.reason)) : summary(result);
}

std::string PutFuture::state(bool done) const {
  const auto& put = static_cast<PutOperation&>(operation());
  if (!done) return {};
  return summary(PutResult{{put.results().begin(), put.results().end()}, put.succeeded(), map_});
}

std::string LoadFuture::state(bool done) const {
  if (!done) return ", layers below " + std::to_string(load().layers_done()) + " are in place";
  return summary(LoadResult{{load().results().begin(), load().results().end()}, load().loaded(), map_});
}

nb::object LookupFuture::make_result() const {
  const auto& result = static_cast<LookupOperation&>(operation()).result();
  check(result.error);
  return nb::cast(LookupResult(result));
}

nb::object PutFuture::make_result() const {
  const auto& put = static_cast<PutOperation&>(operation());
  return nb::cast(PutResult{{put.results().begin(), put.results().end()}, put.succeeded(), map_});
}
void PutFuture::cancel_operation() const { static_cast<PutOperation&>(operation()).cancel(); }

nb::object LoadFuture::make_result() const {
  return nb::cast(LoadResult{{load().results().begin(), load().results().end()}, load().loaded(), map_});
}
void LoadFuture::cancel_operation() const { load().cancel(); }

std::uint32_t LoadFuture::layers_done() const {
  check_process();
  return load().layers_done();
}

bool LoadFuture::wait_layers(std::uint32_t layers, std::optional<double> timeout) const {
  check_process();
  const auto until = until_of(timeout);
  if (load().layers_done() >= layers || load().done()) return true;
  return wait_in_slices(until, [&](std::chrono::nanoseconds time) { return load().wait_layers(layers, time); });
}

namespace {

void bind_results(nb::module_& module) {
  nb::class_<PutResult>(module, "PutResult", "What a put answered, per page and pool.")
      .def_ro("succeeded", &PutResult::succeeded, "Items that are stored now, by whomever.")
      .def_prop_ro(
          "items", [](const PutResult& r) { return r.items.size(); }, "Pages x pools that had a row.")
      .def_prop_ro(
          "ok", [](const PutResult& r) { return r.succeeded == r.items.size(); }, "Whether all items are stored.")
      .def_prop_ro(
          "retry_after", [](const PutResult& r) { return retry_after_ms(r) / 1e3; },
          "Seconds after which what was rejected may be tried again; 0 where nothing was.")
      .def(
          "verdicts",
          [](const PutResult& r, nb::handle pool) {
            return r.map->per_page(pool, [&](std::size_t i) { return r.items[i].verdict; });
          },
          nb::arg("pool").none(), nb::sig("def verdicts(self, pool: Pool | str) -> bytes"),
          "One kvonce.Verdict value per page; 0 where the page had no row in that pool.")
      .def(
          "reasons",
          [](const PutResult& r, nb::handle pool) {
            return r.map->per_page(pool, [&](std::size_t i) { return r.items[i].reason; });
          },
          nb::arg("pool").none(), nb::sig("def reasons(self, pool: Pool | str) -> bytes"),
          "One kvonce.Reason value per page; 0 where there is none.")
      .def(
          "causes",
          [](const PutResult& r) {
            nb::dict causes;
            for (const PutItemResult& item : r.items)
              if (!is_success(item.verdict)) count(causes, cause_of(item));
            return causes;
          },
          nb::sig("def causes(self) -> dict[str, int]"),
          "Number of items by what kept them from being stored, as 'rejected: no_space'.")
      .def("__repr__", [](const PutResult& r) { return "<kvonce.PutResult: " + summary(r) + ">"; });

  nb::class_<LoadResult>(module, "LoadResult", "What a load answered, per page and pool.")
      .def_ro("loaded", &LoadResult::loaded, "Items whose bytes are in place and verified.")
      .def_prop_ro(
          "items", [](const LoadResult& r) { return r.items.size(); }, "Pages x pools that had a row.")
      .def_prop_ro(
          "ok", [](const LoadResult& r) { return r.loaded == r.items.size(); }, "Whether all items were loaded.")
      .def(
          "reasons",
          [](const LoadResult& r, nb::handle pool) { return r.map->per_page(pool, [&](std::size_t i) { return r.items[i]; }); },
          nb::arg("pool").none(), nb::sig("def reasons(self, pool: Pool | str) -> bytes"),
          "One kvonce.Reason value per page; 0: loaded, or no row in that pool.")
      .def(
          "causes",
          [](const LoadResult& r) {
            nb::dict causes;
            for (const Reason reason : r.items)
              if (reason != Reason::none) count(causes, optional_reason(reason));
            return causes;
          },
          nb::sig("def causes(self) -> dict[str, int]"), "Number of items by the reason why they were not loaded.")
      .def("__repr__", [](const LoadResult& r) { return "<kvonce.LoadResult: " + summary(r) + ">"; });

  nb::class_<LookupResult>(module, "Lookup", "Which prefix lengths are restorable, and why no more.")
      .def_ro("pages", &LookupResult::restorable_pages, "Deepest restorable prefix, in pages.")
      .def_ro("resident_pages", &LookupResult::resident_pages, "Leading pages whose every-page pools are all there; >= pages.")
      .def_ro("every_stop", &LookupResult::every_stop, "Whether each length up to `pages` is restorable.")
      .def_ro("stops", &LookupResult::stops, "Otherwise: all restorable lengths, ascending.")
      .def_ro("leased_stops", &LookupResult::leased_stops, "Those whose trailing pools the lease covers.")
      .def_prop_ro(
          "lease", [](const LookupResult& r) { return r.lease ? nb::cast(Lease{r.lease}) : nb::object(nb::none()); },
          nb::sig("def lease(self) -> Lease | None"),
          "Keeps the pages from eviction until it is released or ends; None: nothing is leased.")
      .def_prop_ro(
          "lease_left", [](const LookupResult& r) { return static_cast<double>(r.lease_left.count()) / 1e3; },
          "Seconds that the lease holds from the answer on.")
      .def_ro("first_missing", &LookupResult::first_missing, "The first page that is not restorable.")
      .def_prop_ro(
          "reason",
          [](const LookupResult& r) {
            return r.reason == Reason::none ? nb::object(nb::none()) : nb::object(nb::cast(optional_reason(r.reason)));
          },
          nb::sig("def reason(self) -> str | None"), "Why it is not, one of kvonce.REASONS; None: all are.")
      .def_ro("missing_pool", &LookupResult::missing_pool,
              "The pool that lacks it, where the reason is group_incomplete; else empty. Where the pages go on but no stop does: "
              "the\n"
              "pool that keeps the stop from being legal, of those behind the prefix, that lacks the fewest objects (of equals "
              "the first).")
      .def_ro("missing_shard", &LookupResult::missing_shard, "The first shard of that pool that is not readable.")
      .def_prop_ro(
          "retry_after", [](const LookupResult& r) { return r.retry_after_ms / 1e3; },
          "Seconds to wait, where the reason is busy.")
      .def_ro("optional_missing", &LookupResult::optional_missing, "Optional pools that do not cover the whole prefix.")
      .def("__repr__", [](const LookupResult& r) { return "<kvonce.Lookup of " + summary(r) + ">"; });
}

}  // namespace

void bind_futures(nb::module_& module) {
  bind_results(module);
  const auto timeout = nb::arg("timeout") = nb::none();
  nb::class_<Future>(module, "Future", "A result that comes later; can be awaited in asyncio.")
      .def("done", &Future::done, "Whether the result is there.")
      .def("__repr__", &Future::repr)
      .def("wait", &Future::wait, timeout, nb::sig("def wait(self, timeout: float | None = None) -> bool"),
           "Waits until done, at most so many seconds (None: to the call's own deadline). False when the time passed first.")
      .def("result", &Future::result, timeout, nb::sig("def result(self, timeout: float | None = None) -> typing.Any"),
           "Waits for the result. Raises Deadline when it is not there in time; the call goes on.")
      .def("cancel", &Future::cancel, "Ends what has not begun. The rows are back when the future is done, not before.")
      .def(
          "add_done_callback",
          [](nb::handle self, nb::handle call) { nb::cast<const Future&>(self).add_done_callback(self, call); }, nb::arg("fn"),
          nb::sig("def add_done_callback(self, fn: collections.abc.Callable[[typing.Self], object]) -> None"),
          "Calls fn(future) once it is done, always on the one thread that kvonce keeps for that: fn should be short.");
  nb::class_<LookupFuture, Future>(module, "LookupFuture",
                                   "Answers a Lookup; raises StoreLost or Deadline where there is no answer.");
  nb::class_<PutFuture, Future>(module, "PutFuture", "Answers a PutResult. Until then the rows must not change.");
  nb::class_<LoadFuture, Future>(module, "LoadFuture", "Answers a LoadResult. Until then the rows may be written to.")
      .def_prop_ro("layers_done", &LoadFuture::layers_done, "All pages' layers below this one are in place and verified.")
      .def("wait_layers", &LoadFuture::wait_layers, nb::arg("layers"), timeout,
           nb::sig("def wait_layers(self, layers: int, timeout: float | None = None) -> bool"),
           "Waits until layers_done >= layers, or the load is done. False when the time (seconds) passed first.");
}

}  // namespace kvonce::python
