// SPDX-License-Identifier: Apache-2.0
//
// Texts, page hashes, version: what needs no runtime.
#include "capi/handles.hpp"

#include <kvonce/version.hpp>

using namespace kvonce;        // NOLINT: the C API speaks all of its words
using namespace kvonce::capi;  // NOLINT

namespace {

// The C++ texts are literals, and so end with a zero byte.
template <class Word>
const char* text_of(int number, std::size_t count) noexcept {
  return number >= 0 && static_cast<std::size_t>(number) < count ? to_string(static_cast<Word>(number)).data() : "?";
}

}  // namespace

extern "C" {

const char* kvonce_level_text(int level) { return text_of<AckLevel>(level, 3); }
const char* kvonce_verdict_text(int verdict) { return text_of<Verdict>(verdict, kVerdictCount); }
const char* kvonce_reason_text(int reason) { return text_of<Reason>(reason, kReasonCount); }

const char* kvonce_operation_kind_text(int kind) {
  static constexpr const char* kTexts[] = {"put", "load", "lookup", "flush", "remove"};
  return kind >= 0 && kind < 5 ? kTexts[kind] : "?";
}

const char* kvonce_store_event_kind_text(int kind) {
  static constexpr const char* kTexts[] = {"stored", "evicted", "removed"};
  return kind >= 0 && kind < 3 ? kTexts[kind] : "?";
}

int kvonce_verdict_is_success(int verdict) {
  return verdict >= 0 && static_cast<std::size_t>(verdict) < kVerdictCount && is_success(static_cast<Verdict>(verdict)) ? 1 : 0;
}

const char* kvonce_version(void) {
  try {
    static const std::string kText = version();
    return kText.c_str();
  } catch (...) { return "?"; }
}

kvonce_reason kvonce_page_from_hex(const char* hex, kvonce_page* page, kvonce_error* error) {
  return guarded(error, [&]() -> Error {
    if (hex == nullptr) return null("text");
    if (page == nullptr) return null("page");
    const std::string_view text(hex, strnlen(hex, 66));
    const auto made = PageHash::from_hex(text);
    if (!made)
      return bad("a page hash is written with " + std::to_string(text.size()) +
                 " characters: must be exactly 64 hexadecimal digits");
    std::memcpy(page->bytes, made->words.data(), sizeof page->bytes);
    return {};
  });
}

void kvonce_page_to_hex(const kvonce_page* page, char hex[65]) {
  if (page == nullptr || hex == nullptr) return;
  for (std::size_t i = 0; i < sizeof page->bytes; ++i) {
    hex[2 * i] = "0123456789abcdef"[page->bytes[i] >> 4U];
    hex[2 * i + 1] = "0123456789abcdef"[page->bytes[i] & 15U];
  }
  hex[64] = '\0';
}

}  // extern "C"
