// SPDX-License-Identifier: Apache-2.0
//
// The C API's words are the C++ API's, number by number, and its header is C++ too.
#include <kvonce/kvonce.h>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <string_view>

#include <kvonce/runtime.hpp>

namespace {

using kvonce::AckLevel;
using kvonce::MemoryKind;
using kvonce::OperationKind;
using kvonce::Reason;
using kvonce::StoreEvent;
using kvonce::Verdict;

#define KVONCE_SAME(C, Cpp) static_assert(static_cast<int>(C) == static_cast<int>(Cpp))

KVONCE_SAME(KVONCE_LEVEL_MEMORY, AckLevel::memory);
KVONCE_SAME(KVONCE_LEVEL_DISK, AckLevel::disk);
KVONCE_SAME(KVONCE_LEVEL_REPLICATED, AckLevel::replicated);

KVONCE_SAME(KVONCE_VERDICT_NONE, Verdict::none);
KVONCE_SAME(KVONCE_VERDICT_STORED, Verdict::stored);
KVONCE_SAME(KVONCE_VERDICT_JOINED, Verdict::joined);
KVONCE_SAME(KVONCE_VERDICT_ALREADY_STORED, Verdict::already_stored);
KVONCE_SAME(KVONCE_VERDICT_REJECTED, Verdict::rejected);
KVONCE_SAME(KVONCE_VERDICT_CONFLICT, Verdict::conflict);
KVONCE_SAME(KVONCE_VERDICT_FAILED, Verdict::failed);
KVONCE_SAME(KVONCE_VERDICT_UNKNOWN, Verdict::unknown);
static_assert(kvonce::kVerdictCount == KVONCE_VERDICT_UNKNOWN + 1, "a new verdict needs a name in kvonce.h");

KVONCE_SAME(KVONCE_REASON_NONE, Reason::none);
KVONCE_SAME(KVONCE_REASON_ABSENT, Reason::absent);
KVONCE_SAME(KVONCE_REASON_EVICTED, Reason::evicted);
KVONCE_SAME(KVONCE_REASON_IN_FLIGHT, Reason::in_flight);
KVONCE_SAME(KVONCE_REASON_BUSY, Reason::busy);
KVONCE_SAME(KVONCE_REASON_GROUP_INCOMPLETE, Reason::group_incomplete);
KVONCE_SAME(KVONCE_REASON_STORE_LOST, Reason::store_lost);
KVONCE_SAME(KVONCE_REASON_DEADLINE, Reason::deadline);
KVONCE_SAME(KVONCE_REASON_NO_SPACE, Reason::no_space);
KVONCE_SAME(KVONCE_REASON_REMOVED, Reason::removed);
KVONCE_SAME(KVONCE_REASON_UNVERIFIED, Reason::unverified);
KVONCE_SAME(KVONCE_REASON_LEVEL_UNAVAILABLE, Reason::level_unavailable);
KVONCE_SAME(KVONCE_REASON_UNKNOWN_NAMESPACE, Reason::unknown_namespace);
KVONCE_SAME(KVONCE_REASON_UNKNOWN_POOL, Reason::unknown_pool);
KVONCE_SAME(KVONCE_REASON_WRONG_SIZE, Reason::wrong_size);
KVONCE_SAME(KVONCE_REASON_ROW_OUT_OF_RANGE, Reason::row_out_of_range);
KVONCE_SAME(KVONCE_REASON_LEASE_UNKNOWN, Reason::lease_unknown);
KVONCE_SAME(KVONCE_REASON_LEASE_EXPIRED, Reason::lease_expired);
KVONCE_SAME(KVONCE_REASON_CHECKSUM_MISMATCH, Reason::checksum_mismatch);
KVONCE_SAME(KVONCE_REASON_GENERATION_CHANGED, Reason::generation_changed);
KVONCE_SAME(KVONCE_REASON_CANCELED, Reason::canceled);
KVONCE_SAME(KVONCE_REASON_COPY_FAILED, Reason::copy_failed);
KVONCE_SAME(KVONCE_REASON_PERSIST_FAILED, Reason::persist_failed);
KVONCE_SAME(KVONCE_REASON_CLOSED, Reason::closed);
KVONCE_SAME(KVONCE_REASON_TOO_MANY, Reason::too_many);
KVONCE_SAME(KVONCE_REASON_BAD_ARGUMENT, Reason::bad_argument);
static_assert(kvonce::kReasonCount == KVONCE_REASON_BAD_ARGUMENT + 1, "a new reason needs a name in kvonce.h");

KVONCE_SAME(KVONCE_OPERATION_PUT, OperationKind::put);
KVONCE_SAME(KVONCE_OPERATION_LOAD, OperationKind::load);
KVONCE_SAME(KVONCE_OPERATION_LOOKUP, OperationKind::lookup);
KVONCE_SAME(KVONCE_OPERATION_FLUSH, OperationKind::flush);
KVONCE_SAME(KVONCE_OPERATION_REMOVE, OperationKind::remove);

KVONCE_SAME(KVONCE_STORE_EVENT_STORED, StoreEvent::Kind::stored);
KVONCE_SAME(KVONCE_STORE_EVENT_EVICTED, StoreEvent::Kind::evicted);
KVONCE_SAME(KVONCE_STORE_EVENT_REMOVED, StoreEvent::Kind::removed);

KVONCE_SAME(KVONCE_MEMORY_HOST, MemoryKind::host);
KVONCE_SAME(KVONCE_MEMORY_HIP, MemoryKind::hip);
static_assert(KVONCE_BATCH_MAX == kvonce::kMaxBatchItems);
static_assert(KVONCE_REPORT_COUNTERS_MAX == kvonce::kMaxReportCounters);
static_assert(KVONCE_REPORT_LABELS_MAX == kvonce::kMaxReportsPerClient);
static_assert(KVONCE_NAME_BYTES > kvonce::kMaxReportLabelBytes && KVONCE_NAME_BYTES > kvonce::kMaxReportNameBytes);

// No versioned struct ends in bytes that a later field could fill without making it larger.
template <class T, class Last>
constexpr bool ends_with(std::size_t offset) {
  return offset + sizeof(Last) == sizeof(T);
}
static_assert(ends_with<kvonce_runtime_options, std::uint32_t>(offsetof(kvonce_runtime_options, reserved)));
static_assert(ends_with<kvonce_group_options, std::uint64_t>(offsetof(kvonce_group_options, timeout_ms)));
static_assert(ends_with<kvonce_pool_options, std::uint64_t>(offsetof(kvonce_pool_options, timeout_ms)));
static_assert(ends_with<kvonce_put_options, std::uint32_t>(offsetof(kvonce_put_options, level)));
static_assert(ends_with<kvonce_load_options, std::uint32_t>(offsetof(kvonce_load_options, reserved)));
static_assert(ends_with<kvonce_lookup_options, std::uint64_t>(offsetof(kvonce_lookup_options, probe)));
static_assert(ends_with<kvonce_store_start, char[KVONCE_TEXT_BYTES + 4]>(offsetof(kvonce_store_start, why_cold)));
static_assert(ends_with<kvonce_stats, std::uint64_t>(offsetof(kvonce_stats, store_answered)));
static_assert(ends_with<kvonce_lookup_result, char[KVONCE_NAME_BYTES]>(offsetof(kvonce_lookup_result, missing_pool)));
static_assert(sizeof(kvonce_counter) == 16 && sizeof(kvonce_reported) == 3 * KVONCE_NAME_BYTES + 16);
static_assert(sizeof(kvonce_error) == 1024 && sizeof(kvonce_item) == 16 && sizeof(kvonce_put_result) == 8);

}  // namespace

TEST_CASE("every word has the text that it has in C++, and others have none") {
  for (int i = 0; i < static_cast<int>(kvonce::kReasonCount); ++i)
    CHECK(kvonce_reason_text(i) == to_string(static_cast<Reason>(i)));
  for (int i = 0; i < static_cast<int>(kvonce::kVerdictCount); ++i) {
    CHECK(kvonce_verdict_text(i) == to_string(static_cast<Verdict>(i)));
    CHECK((kvonce_verdict_is_success(i) != 0) == is_success(static_cast<Verdict>(i)));
  }
  for (int i = 0; i < 3; ++i) CHECK(kvonce_level_text(i) == to_string(static_cast<AckLevel>(i)));
  const auto none = [](const char* text) { return std::string_view(text) == "?"; };
  for (const int wrong : {-1, 64, 1'000'000}) {
    CHECK(none(kvonce_reason_text(wrong)));
    CHECK(none(kvonce_verdict_text(wrong)));
    CHECK(none(kvonce_level_text(wrong)));
    CHECK(none(kvonce_operation_kind_text(wrong)));
    CHECK(none(kvonce_store_event_kind_text(wrong)));
    CHECK(kvonce_verdict_is_success(wrong) == 0);
  }
  CHECK(std::string_view(kvonce_operation_kind_text(KVONCE_OPERATION_REMOVE)) == "remove");
  CHECK(std::string_view(kvonce_store_event_kind_text(KVONCE_STORE_EVENT_EVICTED)) == "evicted");
  CHECK(std::string_view(kvonce_version()).find("CAF") != std::string_view::npos);
}

TEST_CASE("the defaults of the C options are those of the C++ ones") {
  const kvonce::RuntimeConfig config;
  kvonce_runtime_options options;
  kvonce_runtime_options_init(&options);
  CHECK(options.size == sizeof options);
  CHECK(options.engine_id == nullptr);
  CHECK(options.arena_bytes == config.arena_bytes);
  CHECK(options.engine_grace_ms == static_cast<std::uint64_t>(config.engine_grace.count()));
  CHECK(options.lease_time_ms == static_cast<std::uint64_t>(config.lease_time.count()));
  CHECK(options.numa_node == config.numa_node);
  CHECK(options.checksums == 1);
  CHECK(options.read_only == 0);
  CHECK(options.huge_pages == static_cast<std::uint32_t>(config.huge_pages.kind()));
  // Into a struct of a newer release: what this library does not know is zero.
  struct Newer {
    kvonce_runtime_options options;
    std::uint64_t more[4];
  } newer;
  std::memset(&newer, 0xff, sizeof newer);
  kvonce_runtime_options_init_sized(&newer.options, sizeof newer);
  CHECK(newer.options.size == sizeof newer);
  for (const auto word : newer.more) CHECK(word == 0);
}
