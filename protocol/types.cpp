// SPDX-License-Identifier: Apache-2.0
#include <kvonce/types.hpp>

#include <cstring>

namespace kvonce {
namespace {

constexpr std::size_t kHashBytes = 32;
constexpr std::size_t kHashDigits = 2 * kHashBytes;

constexpr std::string_view kVerdictNames[] = {"none",     "stored",   "joined", "already_stored",
                                              "rejected", "conflict", "failed", "unknown"};
static_assert(std::size(kVerdictNames) == kVerdictCount);

constexpr std::string_view kReasonNames[] = {"none",
                                             "absent",
                                             "evicted",
                                             "in_flight",
                                             "busy",
                                             "group_incomplete",
                                             "store_lost",
                                             "deadline",
                                             "no_space",
                                             "removed",
                                             "unverified",
                                             "level_unavailable",
                                             "unknown_namespace",
                                             "unknown_pool",
                                             "wrong_size",
                                             "row_out_of_range",
                                             "lease_unknown",
                                             "lease_expired",
                                             "checksum_mismatch",
                                             "generation_changed",
                                             "canceled",
                                             "copy_failed",
                                             "persist_failed",
                                             "closed",
                                             "too_many",
                                             "bad_argument"};
static_assert(std::size(kReasonNames) == kReasonCount);

constexpr std::string_view kLevelNames[] = {"memory", "disk", "replicated"};

// Values arrive from the wire, too: one that is out of the list must not read beyond the table.
template <std::size_t N>
std::string_view name_of(const std::string_view (&names)[N], std::size_t value) noexcept {
  return value < N ? names[value] : std::string_view("invalid");
}

// -1 for anything but a hexadecimal digit.
int digit_value(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::optional<PageHash> PageHash::from_bytes(std::string_view bytes) noexcept {
  if (bytes.size() != kHashBytes) return std::nullopt;
  PageHash hash;
  std::memcpy(hash.words.data(), bytes.data(), kHashBytes);
  return hash;
}

std::optional<PageHash> PageHash::from_hex(std::string_view hex) noexcept {
  if (hex.size() != kHashDigits) return std::nullopt;
  std::array<unsigned char, kHashBytes> bytes;
  for (std::size_t i = 0; i < kHashBytes; ++i) {
    const int high = digit_value(hex[2 * i]);
    const int low = digit_value(hex[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    bytes[i] = static_cast<unsigned char>(high * 16 + low);
  }
  PageHash hash;
  std::memcpy(hash.words.data(), bytes.data(), kHashBytes);
  return hash;
}

std::string PageHash::to_hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::array<unsigned char, kHashBytes> bytes;
  std::memcpy(bytes.data(), words.data(), kHashBytes);
  std::string hex;
  hex.reserve(kHashDigits);
  for (const unsigned char byte : bytes) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15U]);
  }
  return hex;
}

std::optional<PageHash> parse_page_hash(std::string_view text, std::string* error) {
  static constexpr std::string_view kAllowed = "allowed are 32 raw bytes or 64 hexadecimal digits";
  if (text.size() == kHashBytes) return PageHash::from_bytes(text);
  if (text.size() != kHashDigits) {
    if (error != nullptr) {
      *error = "a page hash of " + std::to_string(text.size()) + " bytes; ";
      error->append(kAllowed);
    }
    return std::nullopt;
  }
  const auto hash = PageHash::from_hex(text);
  if (!hash && error != nullptr) {
    std::size_t at = 0;
    while (digit_value(text[at]) >= 0) ++at;
    *error = "a page hash of 64 bytes whose byte " + std::to_string(at) + " is no hexadecimal digit; ";
    error->append(kAllowed);
  }
  return hash;
}

std::string_view to_string(AckLevel level) noexcept { return name_of(kLevelNames, static_cast<std::size_t>(level)); }
std::string_view to_string(Verdict verdict) noexcept {
  return name_of(kVerdictNames, static_cast<std::size_t>(verdict));
}
std::string_view to_string(Reason reason) noexcept { return name_of(kReasonNames, static_cast<std::size_t>(reason)); }

}  // namespace kvonce
