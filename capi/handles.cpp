// SPDX-License-Identifier: Apache-2.0
#include "capi/handles.hpp"

#include <utility>

namespace kvonce::capi {

namespace {

// The longest beginning of `text` that fits and does not end inside a UTF-8 character.
std::size_t whole_characters(std::string_view text, std::size_t bytes) noexcept {
  if (text.size() <= bytes) return text.size();
  std::size_t end = bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0U) == 0x80U) --end;
  return end;
}

}  // namespace

void copy_text(char* to, std::size_t bytes, std::string_view text) noexcept {
  const std::size_t length = whole_characters(text, bytes - 1);
  std::memcpy(to, text.data(), length);
  std::memset(to + length, 0, bytes - length);
}

kvonce_reason tell(kvonce_error* to, const Error& error) noexcept {
  if (error && to != nullptr) {
    to->reason = static_cast<std::uint32_t>(error.reason);
    copy_text(to->text, sizeof to->text, error.text);
  }
  return static_cast<kvonce_reason>(error.reason);
}

Error bad(std::string text) { return {Reason::bad_argument, std::move(text)}; }
Error null(const char* what) { return bad(std::string("the ") + what + " is NULL"); }

Error check_size(const char* what, std::size_t size, std::size_t first_size) {
  if (size >= first_size && size <= kMaxStructBytes) return {};
  return bad(std::string(what) + ": size is " + std::to_string(size) + " bytes: must be the struct's sizeof, at least " +
             std::to_string(first_size) + " and at most " + std::to_string(kMaxStructBytes));
}

Error check_tail(const char* what, std::size_t size, std::size_t known, const void* begin) {
  const auto* const bytes = static_cast<const unsigned char*>(begin);
  for (std::size_t i = known; i < size; ++i) {
    if (bytes[i] != 0)
      return bad(std::string(what) + ": size is " + std::to_string(size) + " bytes, this library knows " + std::to_string(known) +
                 ", and byte " + std::to_string(i) + " is not zero: a field is set that this release does not have");
  }
  return {};
}

Error check_reserved(const char* what, std::uint64_t value) {
  return value == 0 ? Error{} : bad(std::string(what) + ": reserved is " + std::to_string(value) + ": must be 0");
}

Error check_flag(const std::string& name, std::uint64_t value) {
  return value <= 1 ? Error{} : bad(name + " is " + std::to_string(value) + ": must be 0 or 1");
}

Error check_list(const char* call, const char* what, const void* list, std::size_t count, std::size_t least) {
  if (count < least || count > kMaxBatchItems)
    return {count < least ? Reason::bad_argument : Reason::too_many, std::string(call) + ": " + std::to_string(count) + " " +
                                                                         what + ": must be " + std::to_string(least) + " to " +
                                                                         std::to_string(kMaxBatchItems)};
  return list == nullptr && count != 0 ? bad(std::string(call) + ": the " + what + " are NULL") : Error{};
}

std::chrono::milliseconds to_ms(std::uint64_t ms) noexcept {
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::min<std::uint64_t>(ms, std::uint64_t{1} << 40U)));
}
std::chrono::milliseconds to_ms_or(std::uint64_t ms, std::chrono::milliseconds otherwise) noexcept {
  return ms == 0 ? otherwise : to_ms(ms);
}
std::chrono::nanoseconds to_ns(std::uint64_t ns) noexcept {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min<std::uint64_t>(ns, std::uint64_t{1} << 62U)));
}

PageHash to_page(const kvonce_page& page) noexcept {
  PageHash hash;
  static_assert(sizeof hash.words == sizeof page.bytes);
  std::memcpy(hash.words.data(), page.bytes, sizeof page.bytes);
  return hash;
}
std::vector<PageHash> to_pages(const kvonce_page* pages, std::size_t count) {
  std::vector<PageHash> made(count);
  static_assert(sizeof(PageHash) == sizeof(kvonce_page));
  if (count != 0) std::memcpy(static_cast<void*>(made.data()), pages, count * sizeof(kvonce_page));
  return made;
}

Coordinates to_coordinates(const kvonce_coordinates& at) noexcept {
  return {{at.tp.index, at.tp.of}, {at.pp.index, at.pp.of}, {at.cp.index, at.cp.of}};
}
ShardCounts to_shards(const kvonce_shards& shards) noexcept { return {shards.tp, shards.pp, shards.cp}; }
kvonce_shards from_shards(const ShardCounts& shards) noexcept { return {shards.tp, shards.pp, shards.cp}; }

Error to_completion(const kvonce_completion* from, Completion* to) {
  if (from == nullptr) return {};
  if (from->queue != nullptr) {
    if (Error error = check(from->queue, "queue")) return error;
    to->queue = from->queue->queue;
  }
  to->user_data = from->user_data;
  if (from->callback != nullptr) to->callback = [call = from->callback, argument = from->argument] { call(argument); };
  return {};
}

}  // namespace kvonce::capi
