// SPDX-License-Identifier: Apache-2.0
//
// Operations and their results.
#include "capi/handles.hpp"

#include "runtime/operation_impl.hpp"

using namespace kvonce;        // NOLINT: the C API speaks all of its words
using namespace kvonce::capi;  // NOLINT

namespace {

// The derived classes differ by what they hand out only; the kind says which one it is.
template <class Op>
struct Kinds;
template <>
struct Kinds<PutOperation> {
  static bool fits(OperationKind kind) { return kind == OperationKind::put; }
  static constexpr const char* kText = "a put";
};
template <>
struct Kinds<LoadOperation> {
  static bool fits(OperationKind kind) { return kind == OperationKind::load; }
  static constexpr const char* kText = "a load";
};
template <>
struct Kinds<LookupOperation> {
  static bool fits(OperationKind kind) { return kind == OperationKind::lookup; }
  static constexpr const char* kText = "a lookup";
};
template <>
struct Kinds<AdminOperation> {
  static bool fits(OperationKind kind) { return kind == OperationKind::flush || kind == OperationKind::remove; }
  static constexpr const char* kText = "a flush, remove or clear";
};

template <class Op>
Error as(const kvonce_operation* operation, Op** out) {
  if (Error wrong = check(operation, "operation")) return wrong;
  if (!Kinds<Op>::fits(operation->operation->kind()))
    return bad(std::string("the operation is a ") + kvonce_operation_kind_text(static_cast<int>(operation->operation->kind())) +
               ": must be " + Kinds<Op>::kText);
  *out = static_cast<Op*>(operation->operation.get());
  return {};
}

template <class Op>
Error ended(const kvonce_operation* operation, Op** out) {
  if (Error wrong = as(operation, out)) return wrong;
  return (*out)->done() ? Error{} : Error{Reason::in_flight, "the operation is not done yet"};
}

Error check_wait(const char* call) {
  return in_callback() ? bad(std::string(call) + " waits, and must not be called from a callback") : Error{};
}

Error stops_of(const kvonce_operation* operation, std::uint32_t* stops, std::size_t capacity, std::size_t* count,
               std::vector<std::uint32_t> LookupResult::*list) {
  LookupOperation* lookup = nullptr;
  if (Error wrong = ended(operation, &lookup)) return wrong;
  return copy_list(lookup->result().*list, stops, capacity, count, [](std::uint32_t from, std::uint32_t* to) { *to = from; });
}

}  // namespace

extern "C" {

int kvonce_operation_kind_of(const kvonce_operation* operation) {
  return usable(operation) ? static_cast<int>(operation->operation->kind()) : -1;
}
uint64_t kvonce_operation_id(const kvonce_operation* operation) { return usable(operation) ? operation->operation->id() : 0; }
int kvonce_operation_done(const kvonce_operation* operation) { return usable(operation) && operation->operation->done() ? 1 : 0; }

kvonce_reason kvonce_operation_wait(const kvonce_operation* operation, uint64_t timeout_ns, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(operation, "operation")) return wrong;
    if (Error wrong = check_wait("kvonce_operation_wait")) return wrong;
    if (timeout_ns == KVONCE_NO_TIMEOUT) {
      operation->operation->wait();
      return {};
    }
    if (operation->operation->wait_for(to_ns(timeout_ns))) return {};
    return {Reason::deadline, "the operation is not done after " + std::to_string(timeout_ns) + " ns"};
  });
}

kvonce_reason kvonce_operation_cancel(kvonce_operation* operation, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (Error wrong = check(operation, "operation")) return wrong;
    const OperationKind kind = operation->operation->kind();
    if (kind == OperationKind::put) static_cast<PutOperation*>(operation->operation.get())->cancel();
    if (kind == OperationKind::load) static_cast<LoadOperation*>(operation->operation.get())->cancel();
    return {};
  });
}

void kvonce_operation_free(kvonce_operation* operation) { free_handle(operation); }

kvonce_reason kvonce_put_results(const kvonce_operation* operation, kvonce_put_result* results, size_t capacity, size_t* count,
                                 uint64_t* succeeded, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    PutOperation* put = nullptr;
    if (Error wrong = ended(operation, &put)) return wrong;
    if (Error wrong = copy_list(put->results(), results, capacity, count, [](const PutItemResult& from, kvonce_put_result* to) {
          *to = {static_cast<std::uint8_t>(from.verdict), static_cast<std::uint8_t>(from.reason), 0, from.retry_after_ms};
        }))
      return wrong;
    if (succeeded != nullptr) *succeeded = put->succeeded();
    return {};
  });
}

kvonce_reason kvonce_load_results(const kvonce_operation* operation, uint8_t* reasons, size_t capacity, size_t* count,
                                  uint64_t* loaded, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    LoadOperation* load = nullptr;
    if (Error wrong = ended(operation, &load)) return wrong;
    if (Error wrong = copy_list(load->results(), reasons, capacity, count,
                                [](Reason from, std::uint8_t* to) { *to = static_cast<std::uint8_t>(from); }))
      return wrong;
    if (loaded != nullptr) *loaded = load->loaded();
    return {};
  });
}

uint32_t kvonce_load_layers_done(const kvonce_operation* operation) {
  if (!usable(operation) || operation->operation->kind() != OperationKind::load) return 0;
  return static_cast<const LoadOperation*>(operation->operation.get())->layers_done();
}

kvonce_reason kvonce_load_wait_layers(const kvonce_operation* operation, uint32_t layers, uint64_t timeout_ns,
                                      kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    LoadOperation* load = nullptr;
    if (Error wrong = as(operation, &load)) return wrong;
    if (Error wrong = check_wait("kvonce_load_wait_layers")) return wrong;
    if (load->wait_layers(layers, to_ns(timeout_ns))) return {};
    return {Reason::deadline, "of " + std::to_string(layers) + " layers " + std::to_string(load->layers_done()) +
                                  " are in place after " + std::to_string(timeout_ns) + " ns"};
  });
}

kvonce_reason kvonce_lookup_get_result(const kvonce_operation* operation, kvonce_lookup_result* result, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    LookupOperation* lookup = nullptr;
    if (Error wrong = ended(operation, &lookup)) return wrong;
    if (result == nullptr) return null("result's place");
    const LookupResult& from = lookup->result();
    if (from.error) return from.error;
    kvonce_lookup_result to{};
    to.lease = {from.lease.high, from.lease.low};
    to.lease_left_ms = static_cast<std::uint64_t>(from.lease_left.count());
    to.restorable_pages = from.restorable_pages;
    to.resident_pages = from.resident_pages;
    to.every_stop = from.every_stop;
    to.first_missing = from.first_missing;
    to.reason = static_cast<std::uint32_t>(from.reason);
    to.missing_shard = from.missing_shard;
    to.retry_after_ms = from.retry_after_ms;
    to.stop_count = from.stops.size();
    to.leased_stop_count = from.leased_stops.size();
    to.optional_missing_count = from.optional_missing.size();
    copy_text(to.missing_pool, sizeof to.missing_pool, from.missing_pool);
    return write_result(to, result, "lookup result");
  });
}

kvonce_reason kvonce_lookup_stops(const kvonce_operation* operation, uint32_t* stops, size_t capacity, size_t* count,
                                  kvonce_error* error) {
  return guarded(error, [&] { return stops_of(operation, stops, capacity, count, &LookupResult::stops); });
}

kvonce_reason kvonce_lookup_leased_stops(const kvonce_operation* operation, uint32_t* stops, size_t capacity, size_t* count,
                                         kvonce_error* error) {
  return guarded(error, [&] { return stops_of(operation, stops, capacity, count, &LookupResult::leased_stops); });
}

kvonce_reason kvonce_lookup_optional_missing(const kvonce_operation* operation, size_t index, char name[KVONCE_NAME_BYTES],
                                             kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    LookupOperation* lookup = nullptr;
    if (Error wrong = ended(operation, &lookup)) return wrong;
    if (name == nullptr) return null("name's place");
    const auto& names = lookup->result().optional_missing;
    if (index >= names.size())
      return bad("optional pool " + std::to_string(index) + " is asked for: " + std::to_string(names.size()) + " are missing");
    copy_text(name, KVONCE_NAME_BYTES, names[index]);
    return {};
  });
}

kvonce_reason kvonce_admin_result(const kvonce_operation* operation, uint64_t* count, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    AdminOperation* admin = nullptr;
    if (Error wrong = ended(operation, &admin)) return wrong;
    if (admin->error()) return admin->error();
    if (count != nullptr) *count = admin->count();
    return {};
  });
}

}  // extern "C"
