// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/generators.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "apps/workload/random.hpp"

namespace kvonce::workload {
namespace {

template <std::size_t N>
using Table = std::array<std::uint32_t, N>;

// Quantiles as measured in recorded traces, in tokens unless the name says otherwise. The topmost values are drawn in a little: a straight
// line up to a single extreme would give too many long ones.
constexpr Table<17> kChatFirst{891,   898,   915,    1040,   1320,   1878,   3360,   4402,  5226,
                               6428,  8021,  10150,  13008,  16651,  22105,  33743,  85000};
constexpr Table<17> kChatGrowth{10, 20, 60, 120, 180, 260, 330, 400, 480, 560, 700, 1000, 2900, 5000, 8000, 12600, 24000};
constexpr Table<17> kChatOutput{1, 13, 32, 87, 156, 223, 275, 315, 350, 381, 410, 442, 472, 513, 566, 664, 1000};
constexpr std::size_t kChatLive = 350;                 // conversations that may still be continued
constexpr std::uint64_t kChatNewPermille = 640;        // requests that begin a conversation
constexpr std::uint64_t kChatGapMsMax = 589;           // mean 294 ms
constexpr std::uint64_t kChatTokensMax = 126'000;

constexpr Table<17> kAgentFirst{6343,  13660, 16127, 17724, 18587,  19408,  20227,  21266, 24522,
                                42383, 65591, 88039, 104189, 131097, 219724, 323452, 560000};
constexpr Table<17> kAgentGrowth{20, 161, 214, 272, 330, 395, 468, 547, 654, 782, 947, 1184, 1538, 2006, 2928, 5048, 19000};
constexpr Table<17> kAgentOutput{1, 92, 111, 124, 137, 152, 169, 190, 216, 249, 291, 346, 426, 540, 739, 1315, 5500};
constexpr Table<17> kAgentTurns{3, 5, 8, 13, 18, 23, 29, 36, 46, 55, 67, 79, 94, 116, 144, 215, 340};
constexpr Table<17> kAgentGapMs{0, 123, 260, 384, 536, 736, 920, 1109, 1319, 1590, 1868, 2233, 2633, 3203, 3906, 5091, 9500};
constexpr Table<17> kAgentKeptPermille{0, 0, 35, 73, 85, 102, 124, 149, 177, 231, 318, 440, 772, 987, 994, 996, 999};
constexpr Table<17> kAgentRegrownPages{0, 1, 2, 4, 11, 26, 37, 50, 62, 76, 91, 111, 141, 165, 211, 280, 560};
constexpr std::size_t kAgentSlots = 14;
constexpr std::uint64_t kAgentCutPermille = 36;
constexpr std::uint64_t kAgentTokensMax = 890'000;
constexpr std::size_t kAgentPrompts = 4;               // different system prompts with tools
constexpr std::uint64_t kAgentPromptPages = 11;        // 5,632 tokens, less than the shortest first request

/// What one conversation or session has in its prompt so far.
struct Context {
  std::uint64_t tokens = 0;
  std::uint64_t output_tokens = 0;  // of the last answer; part of the next prompt
  std::vector<std::uint64_t> pages;
  std::uint64_t session = 0;
  std::uint64_t turns_left = 0;
};

class Generator : public TraceSource {
public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}
  const std::string& error() const override { return error_; }

protected:
  std::vector<std::uint64_t> new_pages(std::uint64_t count) {
    std::vector<std::uint64_t> pages(count);
    for (std::uint64_t& page : pages) page = next_page_++;
    return pages;
  }

  // Pages that are full now get their ids; those there stay.
  TraceRequest request_of(Context& context, std::uint64_t output_tokens) {
    const std::uint64_t full = context.tokens / kTracePageTokens;
    while (context.pages.size() < full) context.pages.push_back(next_page_++);
    context.output_tokens = output_tokens;
    return {now_ms_, context.tokens, output_tokens, context.pages, context.session};
  }

  Random random_;
  std::uint64_t now_ms_ = 0;
  std::uint64_t next_session_ = 0;

private:
  std::uint64_t next_page_ = 0;
  std::string error_;  // a generator has none
};

class ChatGenerator final : public Generator {
public:
  explicit ChatGenerator(std::uint64_t seed) : Generator(seed), system_prompt_(new_pages(1)) {}

  std::optional<TraceRequest> next() override {
    now_ms_ += random_.below(kChatGapMsMax);
    const bool begins = live_.empty() || random_.chance_permille(kChatNewPermille);
    std::size_t at = live_.size();
    if (begins) {
      if (live_.size() < kChatLive) {
        live_.emplace_back();
      } else {
        at = random_.below(kChatLive);
      }
      live_[at] = {random_.from_quantiles(kChatFirst), 0, system_prompt_, next_session_++, 0};
    } else {
      at = random_.below(live_.size());
      Context& context = live_[at];
      const std::uint64_t growth = context.output_tokens + random_.from_quantiles(kChatGrowth);
      context.tokens = std::min(context.tokens + growth, kChatTokensMax);
    }
    return request_of(live_[at], random_.from_quantiles(kChatOutput));
  }

private:
  std::vector<std::uint64_t> system_prompt_;
  std::vector<Context> live_;
};

class AgenticGenerator final : public Generator {
public:
  explicit AgenticGenerator(std::uint64_t seed) : Generator(seed), slots_(kAgentSlots) {
    for (auto& prompt : prompts_) prompt = new_pages(kAgentPromptPages);
    for (Context& slot : slots_) {
      begin(slot);
      // A stream that starts in the middle of its life: the first sessions do not all end together.
      slot.turns_left = 1 + random_.below(slot.turns_left);
    }
  }

  std::optional<TraceRequest> next() override {
    now_ms_ += random_.from_quantiles(kAgentGapMs);
    Context& slot = slots_[random_.below(kAgentSlots)];
    if (slot.turns_left == 0) begin(slot);
    --slot.turns_left;
    const bool first = slot.output_tokens == 0;
    if (!first) grow(slot);
    // At least one token, since `first` is told from it.
    return request_of(slot, std::max<std::uint64_t>(1, random_.from_quantiles(kAgentOutput)));
  }

private:
  void begin(Context& slot) {
    slot.tokens = random_.from_quantiles(kAgentFirst);
    slot.output_tokens = 0;
    slot.pages = prompts_[random_.below(kAgentPrompts)];
    slot.session = next_session_++;
    slot.turns_left = random_.from_quantiles(kAgentTurns);
  }

  void grow(Context& slot) {
    if (random_.chance_permille(kAgentCutPermille) || slot.tokens + kAgentGrowth.back() > kAgentTokensMax) {
      const std::uint64_t kept = slot.pages.size() * random_.from_quantiles(kAgentKeptPermille) / 1000;
      slot.pages.resize(std::max(kAgentPromptPages, kept));
      const std::uint64_t pages = slot.pages.size() + 1 + random_.from_quantiles(kAgentRegrownPages);
      slot.tokens = std::min(kAgentTokensMax, pages * kTracePageTokens + random_.below(kTracePageTokens));
    } else {
      slot.tokens += random_.from_quantiles(kAgentGrowth);
    }
  }

  std::array<std::vector<std::uint64_t>, kAgentPrompts> prompts_;
  std::vector<Context> slots_;
};

}  // namespace

std::unique_ptr<TraceSource> make_chat_generator(std::uint64_t seed) { return std::make_unique<ChatGenerator>(seed); }
std::unique_ptr<TraceSource> make_agentic_generator(std::uint64_t seed) { return std::make_unique<AgenticGenerator>(seed); }

}  // namespace kvonce::workload
