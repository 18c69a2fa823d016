// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target without libFuzzer: every file of the corpus as it is, then as many changed ones as asked for, all from one
// seed. The input of a crash is left in crash-input. An allocation far larger than the input ends the run as well: a length was
// believed.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "target.hpp"

extern "C" void __asan_set_death_callback(void (*)(void)) __attribute__((weak));  // NOLINT(bugprone-reserved-identifier)

namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kInputBytesMax = 4096;
constexpr std::size_t kAllocationMax = 4U << 20U;  // no target has reason for more

const Bytes* current = nullptr;
bool running = false;

void keep_input() {
  if (!running || current == nullptr) return;
  running = false;
  const int file = ::open("crash-input", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0) return;
  if (::write(file, current->data(), current->size()) >= 0) {
    static constexpr char kText[] = "its input is in crash-input\n";
    static_cast<void>(!::write(STDERR_FILENO, kText, sizeof(kText) - 1));
  }
  ::close(file);
}
void on_signal(int signal) {
  keep_input();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

void run(const Bytes& input) {
  current = &input;
  running = true;
  LLVMFuzzerTestOneInput(input.data(), input.size());
  running = false;
}

class Changer {
 public:
  Changer(const std::vector<Bytes>& corpus, std::uint64_t seed) : corpus_(corpus), random_(seed) {}

  Bytes next() {
    Bytes bytes = corpus_.empty() ? Bytes(below(64)) : corpus_[below(corpus_.size())];
    for (std::size_t i = 0, changes = 1 + below(6); i < changes; ++i) change(bytes);
    if (bytes.size() > kInputBytesMax) bytes.resize(kInputBytesMax);
    return bytes;
  }

 private:
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_() % end); }

  void change(Bytes& bytes) {
    static constexpr std::uint64_t kNumbers[] = {0,          1,          4,          127,         128,       255,
                                                 256,        4095,       4096,       65'535,      1U << 20U, (1U << 20U) + 1,
                                                 0x7fffffff, 0x80000000, 0xffffffff, 1ULL << 63U, ~0ULL};
    const std::size_t at = below(bytes.size() + 1);
    switch (below(8)) {
      case 0:
        if (at < bytes.size()) bytes[at] ^= static_cast<std::uint8_t>(1U << below(8));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<std::uint8_t>(random_());
        break;
      case 2: {
        const std::uint64_t number = kNumbers[below(std::size(kNumbers))];
        const std::size_t width = std::size_t{1} << below(4);
        if (at + width <= bytes.size()) std::memcpy(bytes.data() + at, &number, width);
        break;
      }
      case 3: bytes.resize(at); break;
      case 4: {
        const Bytes more(1 + below(16), static_cast<std::uint8_t>(random_()));
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), more.begin(), more.end());
        break;
      }
      case 5: {
        const std::size_t count = below(std::min<std::size_t>(bytes.size() - at, 32) + 1);
        bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.begin() + static_cast<std::ptrdiff_t>(at + count));
        break;
      }
      case 6: {  // the rest of another one
        if (corpus_.empty()) break;
        const Bytes& other = corpus_[below(corpus_.size())];
        const std::size_t from = below(other.size() + 1);
        bytes.resize(at);
        bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
        break;
      }
      default: {  // a part of it once more
        const std::size_t count = below(std::min<std::size_t>(bytes.size() - at, 64) + 1);
        const Bytes part(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                         bytes.begin() + static_cast<std::ptrdiff_t>(at + count));
        const std::size_t to = below(bytes.size() + 1);
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(to), part.begin(), part.end());
      }
    }
  }

  const std::vector<Bytes>& corpus_;
  std::mt19937_64 random_;
};

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, std::istreambuf_iterator<char>{}};
}

}  // namespace

void* operator new(std::size_t bytes) {
  if (running && bytes > kAllocationMax) {
    std::fprintf(stderr, "an allocation of %zu bytes for an input of %zu\n", bytes, current->size());
    std::abort();
  }
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc{};
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s <runs> <seed> [<file or folder>...]\n", argv[0]);
    return 2;
  }
  const std::uint64_t runs = std::strtoull(argv[1], nullptr, 10);
  const std::uint64_t seed = std::strtoull(argv[2], nullptr, 10);
  std::vector<std::filesystem::path> files;
  for (int i = 3; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      files.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator{argv[i]}) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const auto& file : files) corpus.push_back(read_file(file));

  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) ::signal(signal, on_signal);
  if (__asan_set_death_callback != nullptr) __asan_set_death_callback(keep_input);
  for (const Bytes& input : corpus) run(input);
  Changer changer{corpus, seed};
  for (std::uint64_t i = 0; i < runs; ++i) run(changer.next());
  std::printf("%zu of the corpus and %llu changed ones, seed %llu\n", corpus.size(), static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(seed));
  return corpus.empty() && argc > 3 ? 1 : 0;
}
