// SPDX-License-Identifier: Apache-2.0
//
// A ring whose shared memory is written by somebody else between any two steps. The input is a list of steps.
#include "transport/ring.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "target.hpp"
#include "transport/link.hpp"

using namespace kvonce::transport;  // NOLINT

namespace {

constexpr std::uint64_t kRingBytes = 256;  // small, so that a short input goes round it

class Steps {
 public:
  Steps(const std::uint8_t* data, std::size_t size) : at_(data), end_(data + size) {}
  bool done() const { return at_ == end_; }
  std::uint8_t byte() { return at_ == end_ ? 0 : *at_++; }
  std::uint64_t number() {
    std::uint64_t x = 0;
    const std::size_t count = std::min<std::size_t>(sizeof(x), static_cast<std::size_t>(end_ - at_));
    if (count != 0) std::memcpy(&x, at_, count);
    at_ += count;
    return x;
  }

 private:
  const std::uint8_t* at_;
  const std::uint8_t* end_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Steps steps{data, size};
  // On the heap, of its exact size, so that a sanitizer sees each byte outside of it.
  const auto control = std::make_unique<RingControl>();
  control->head = control->tail = 0;
  control->reader_sleeps = control->writer_waits = 0;
  const auto ring = std::make_unique<std::byte[]>(kRingBytes);
  const RingPlace place{control.get(), ring.get(), kRingBytes};
  RingWriter writer{place};
  RingReader reader{place};
  while (!steps.done()) {
    switch (steps.byte() % 10) {
      case 0: control->head = steps.number(); break;
      case 1: control->tail = steps.number(); break;
      case 2: control->reader_sleeps = steps.byte(); break;
      case 3: control->writer_waits = steps.byte(); break;
      case 4: ring[steps.byte()] = static_cast<std::byte>(steps.byte()); break;
      case 5: control->head += steps.byte(); break;
      case 6: {
        const std::uint32_t bytes = 1U + steps.byte() * 5U;
        const std::string frame(bytes, static_cast<char>(bytes));
        const std::string_view header{reinterpret_cast<const char*>(&bytes), sizeof(bytes)};
        KVONCE_FUZZ_CHECK(writer.write(header) <= header.size() && writer.write(frame) <= frame.size());
        writer.publish();
        break;
      }
      case 7: writer.wait_for_room(); break;
      case 8: {
        const int most = 1 + steps.byte() % 8;
        const bool was_broken = reader.broken();
        const int taken = reader.read(
            [](std::string_view frame) {
              KVONCE_FUZZ_CHECK(!frame.empty() && frame.size() <= kMaxFrameBytes);
              const std::string copy{frame};
              return copy.front() != 'N';
            },
            most);
        KVONCE_FUZZ_CHECK(taken >= 0 && taken <= most && (taken == 0 || !was_broken));
        reader.writer_waits();
        break;
      }
      default:
        if (reader.prepare_sleep()) reader.cancel_sleep();
    }
  }
  return 0;
}
