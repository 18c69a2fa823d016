// SPDX-License-Identifier: Apache-2.0
//
// Lookups, leases, exists, stat; removing and flushing.
#include "capi/handles.hpp"

using namespace kvonce;        // NOLINT: the C API speaks all of its words
using namespace kvonce::capi;  // NOLINT

namespace {

/// Starts what `start(completion)` starts.
template <class Start>
Error administrate(kvonce_runtime* runtime, const kvonce_completion* completion, kvonce_operation** operation,
                   const Start& start) {
  if (Error wrong = check(runtime, "runtime")) return wrong;
  if (operation == nullptr) return null("operation's place");
  Completion told;
  if (Error wrong = to_completion(completion, &told)) return wrong;
  auto handle = std::make_unique<kvonce_operation>();
  return give(start(std::move(told)), operation, std::move(handle));
}

Error call_lease(kvonce_runtime* runtime, const kvonce_lease* lease, std::uint32_t stop, bool narrow) {
  if (Error wrong = check(runtime, "runtime")) return wrong;
  if (lease == nullptr) return null("lease");
  return narrow ? runtime->runtime->narrow(to_lease(*lease), stop) : runtime->runtime->release(to_lease(*lease));
}

}  // namespace

extern "C" {

kvonce_reason kvonce_lookup(kvonce_runtime* runtime, uint32_t group, const kvonce_page* pages, size_t page_count,
                            const kvonce_lookup_options* options, kvonce_operation** operation, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    if (operation == nullptr) return null("operation's place");
    if (Error wrong = check_list("lookup", "pages", pages, page_count, 0)) return wrong;
    kvonce_lookup_options read{};
    if (Error wrong = read_options(options, "lookup options", &read)) return wrong;
    LookupOptions with;
    if (Error wrong = to_completion(&read.completion, &with.completion)) return wrong;
    if (read.request_id != nullptr) with.request_id = read.request_id;
    if (Error wrong = check_flag("lookup options: probe", read.probe)) return wrong;
    with.probe = read.probe != 0;
    with.lease_time = to_ms(read.lease_time_ms);
    with.timeout = to_ms_or(read.timeout_ms, with.timeout);
    auto handle = std::make_unique<kvonce_operation>();
    return give(runtime->runtime->lookup({group}, to_pages(pages, page_count), std::move(with)), operation, std::move(handle));
  });
}

kvonce_reason kvonce_lease_narrow(kvonce_runtime* runtime, const kvonce_lease* lease, uint32_t stop, kvonce_error* error) {
  return guarded(error, [&] { return call_lease(runtime, lease, stop, true); });
}

kvonce_reason kvonce_lease_release(kvonce_runtime* runtime, const kvonce_lease* lease, kvonce_error* error) {
  return guarded(error, [&] { return call_lease(runtime, lease, 0, false); });
}

kvonce_reason kvonce_exists(const kvonce_runtime* runtime, uint32_t group, const char* pool, uint32_t shard,
                            const kvonce_page* pages, size_t page_count, uint8_t* found, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    if (pool == nullptr) return null("pool's name");
    if (Error wrong = check_list("exists", "pages", pages, page_count, 0)) return wrong;
    if (found == nullptr && page_count != 0) return null("answer's place");
    const auto answer = runtime->runtime->exists({group}, pool, shard, to_pages(pages, page_count));
    if (answer) std::copy(answer.value.begin(), answer.value.end(), found);
    return answer.error;
  });
}

kvonce_reason kvonce_stat(const kvonce_runtime* runtime, uint32_t ns, const kvonce_page* page, uint32_t* depth,
                          kvonce_stored_object* objects, size_t capacity, size_t* count, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(runtime, "runtime")) return wrong;
    if (page == nullptr) return null("page");
    auto stat = runtime->runtime->stat({ns}, to_page(*page));
    if (!stat) return std::move(stat.error);
    if (!stat->found) return {Reason::absent, "stat: nothing is known of page " + to_page(*page).to_hex()};
    if (Error wrong =
            copy_list(stat->objects, objects, capacity, count, [](const PageStat::Object& from, kvonce_stored_object* to) {
              *to = {};
              copy_text(to->pool, sizeof to->pool, from.pool);
              to->bytes = from.bytes;
              to->shard = from.shard;
              to->level = static_cast<std::uint32_t>(from.level);
            }))
      return wrong;
    if (depth != nullptr) *depth = stat->depth;
    return {};
  });
}

kvonce_reason kvonce_remove_key(kvonce_runtime* runtime, uint32_t group, const char* pool, uint32_t shard,
                                const kvonce_page* page, const kvonce_completion* completion, kvonce_operation** operation,
                                kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (pool == nullptr) return null("pool's name");
    if (page == nullptr) return null("page");
    return administrate(runtime, completion, operation, [&](Completion&& told) {
      return runtime->runtime->remove_key({group}, pool, shard, to_page(*page), std::move(told));
    });
  });
}

kvonce_reason kvonce_remove_pages(kvonce_runtime* runtime, uint32_t ns, const kvonce_page* pages, size_t page_count,
                                  const kvonce_completion* completion, kvonce_operation** operation, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check_list("remove_pages", "pages", pages, page_count, 0)) return wrong;
    return administrate(runtime, completion, operation, [&](Completion&& told) {
      return runtime->runtime->remove_pages({ns}, to_pages(pages, page_count), std::move(told));
    });
  });
}

kvonce_reason kvonce_remove_namespace(kvonce_runtime* runtime, uint32_t ns, const kvonce_completion* completion,
                                      kvonce_operation** operation, kvonce_error* error) {
  return guarded(error, [&] {
    return administrate(runtime, completion, operation,
                        [&](Completion&& told) { return runtime->runtime->remove_namespace({ns}, std::move(told)); });
  });
}

kvonce_reason kvonce_clear(kvonce_runtime* runtime, const kvonce_completion* completion, kvonce_operation** operation,
                           kvonce_error* error) {
  return guarded(error, [&] {
    return administrate(runtime, completion, operation,
                        [&](Completion&& told) { return runtime->runtime->clear(std::move(told)); });
  });
}

kvonce_reason kvonce_flush(kvonce_runtime* runtime, uint32_t level, uint64_t timeout_ms, const kvonce_completion* completion,
                           kvonce_operation** operation, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (level > KVONCE_LEVEL_REPLICATED) return bad("flush: level is " + std::to_string(level) + ": must be 0, 1 or 2");
    return administrate(runtime, completion, operation, [&](Completion&& told) {
      return runtime->runtime->flush(static_cast<AckLevel>(level), to_ms_or(timeout_ms, kDefaultTimeout), std::move(told));
    });
  });
}

}  // extern "C"
