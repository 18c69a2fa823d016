// SPDX-License-Identifier: Apache-2.0
#include "transport/handshake.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace kvonce::transport {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and numbers are copied as they lie");

constexpr std::string_view kMagic{"kvonce\r\n", 8};  // the line end shows a channel that changes bytes
constexpr std::size_t kPreludeBytes = 8 + 3 * sizeof(std::uint32_t);

enum class Kind : std::uint32_t { hello = 1, welcome = 2, refuse = 3 };

class Writer {
 public:
  Writer(Kind kind, std::uint32_t wire) {
    out_.append(kMagic);
    number(wire);
    number(static_cast<std::uint32_t>(kind));
    number(std::uint32_t{0});
  }
  template <class T>
  void number(T x) {
    static_assert(std::is_unsigned_v<T> && !std::is_same_v<T, bool>);
    out_.append(reinterpret_cast<const char*>(&x), sizeof(x));
  }
  void boolean(bool x) { number(static_cast<std::uint8_t>(x)); }
  void text(std::string_view x, std::size_t max_bytes) {
    x = x.substr(0, max_bytes);
    number(static_cast<std::uint32_t>(x.size()));
    out_.append(x);
  }
  std::string take() {
    const auto body = static_cast<std::uint32_t>(out_.size() - kPreludeBytes);
    std::memcpy(out_.data() + kPreludeBytes - sizeof(body), &body, sizeof(body));
    return std::move(out_);
  }

 private:
  std::string out_;
};

// Remembers what was wrong first, and reads zeros from there on.
class Reader {
 public:
  explicit Reader(std::string_view in) : in_(in) {}
  template <class T>
  void number(T& x, const char* name) {
    static_assert(std::is_unsigned_v<T> && !std::is_same_v<T, bool>);
    if (!wrong_.empty()) return;
    if (in_.size() < sizeof(x)) {
      wrong_ = std::string("it ends within the field ") + name;
      return;
    }
    std::memcpy(&x, in_.data(), sizeof(x));
    in_.remove_prefix(sizeof(x));
  }
  void boolean(bool& x, const char* name) {
    std::uint8_t byte = 0;
    number(byte, name);
    if (wrong_.empty() && byte > 1) wrong_ = std::string("its field ") + name + " is " + std::to_string(byte) + ", not 0 or 1";
    x = byte == 1;
  }
  void text(std::string& x, std::size_t max_bytes, const char* name) {
    std::uint32_t bytes = 0;
    number(bytes, name);
    if (!wrong_.empty()) return;
    if (bytes > max_bytes) {
      wrong_ = std::string("its field ") + name + " is " + std::to_string(bytes) + " bytes long, above the limit of " +
               std::to_string(max_bytes);
    } else if (bytes > in_.size()) {
      wrong_ = std::string("it ends within the field ") + name;
    } else {
      x.assign(in_.substr(0, bytes));
      in_.remove_prefix(bytes);
    }
  }
  const std::string& wrong() const { return wrong_; }

 private:
  std::string_view in_;
  std::string wrong_;
};

struct Prelude {
  bool known = false;  // it is a message of kvonce, of whatever version
  std::uint32_t wire = 0;
  std::uint32_t kind = 0;
  std::string_view body;
  std::string wrong;
};

Prelude read_prelude(std::string_view bytes, std::size_t max_bytes) {
  Prelude prelude;
  if (bytes.size() < kPreludeBytes) {
    prelude.wrong = "it is " + std::to_string(bytes.size()) + " bytes long, less than the " + std::to_string(kPreludeBytes) +
                    " of its beginning";
    return prelude;
  }
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    prelude.wrong = "it does not begin as a message of kvonce does";
    return prelude;
  }
  std::uint32_t body_bytes = 0;
  Reader read{bytes.substr(kMagic.size())};
  read.number(prelude.wire, "wire");
  read.number(prelude.kind, "kind");
  read.number(body_bytes, "bytes");
  prelude.known = true;
  prelude.body = bytes.substr(kPreludeBytes);
  if (body_bytes > max_bytes - kPreludeBytes) {
    prelude.wrong =
        "it announces " + std::to_string(body_bytes) + " bytes, above the limit of " + std::to_string(max_bytes - kPreludeBytes);
  } else if (body_bytes != bytes.size() - kPreludeBytes) {
    prelude.wrong =
        "it announces " + std::to_string(body_bytes) + " bytes, and " + std::to_string(bytes.size() - kPreludeBytes) + " came";
  }
  return prelude;
}

// The release text of an end that speaks another wire version; it may be damaged, or hostile.
std::string release_of(std::string_view body) {
  std::string release;
  Reader read{body};
  read.text(release, kMaxReleaseBytes, "release");
  for (char& c : release) {
    if (c < ' ' || c > '~') c = '?';
  }
  return read.wrong().empty() && !release.empty() ? release : "unknown";
}

std::string other_version(const char* who, std::string_view body, std::uint32_t wire, const char* here) {
  return std::string(who) + " speaks wire version " + std::to_string(wire) + " (release " + release_of(body) + "), " + here +
         " speaks wire version " + std::to_string(kWireVersion) + ": both need the same.";
}

}  // namespace

const char* to_string(RefuseReason reason) {
  switch (reason) {
    case RefuseReason::none: return "none";
    case RefuseReason::bad_hello: return "bad_hello";
    case RefuseReason::version: return "version";
    case RefuseReason::credentials: return "credentials";
    case RefuseReason::too_many: return "too_many";
    case RefuseReason::draining: return "draining";
    case RefuseReason::duplicate: return "duplicate";
    case RefuseReason::not_ready: return "not_ready";
  }
  return "unknown";
}

std::string encode(const Hello& hello) {
  Writer write{Kind::hello, hello.wire};
  write.text(hello.release, kMaxReleaseBytes);
  write.number(hello.client);
  write.number(hello.engine);
  write.text(hello.engine_id, kMaxEngineIdBytes);
  write.number(hello.nonce);
  write.number(hello.last_incarnation);
  write.boolean(hello.read_only);
  write.boolean(hello.writes_nothing);
  write.number(hello.pid);
  write.number(hello.start_time);
  write.text(hello.info, kMaxHelloInfoBytes);
  return write.take();
}

std::string encode(const Welcome& welcome) {
  Writer write{Kind::welcome, welcome.wire};
  write.text(welcome.release, kMaxReleaseBytes);
  write.number(welcome.incarnation);
  write.number(welcome.ring_bytes);
  write.boolean(welcome.has_arena);
  write.text(welcome.info, kMaxWelcomeInfoBytes);
  return write.take();
}

std::string encode(const Refuse& refuse) {
  Writer write{Kind::refuse, refuse.wire};
  write.text(refuse.release, kMaxReleaseBytes);
  write.number(static_cast<std::uint32_t>(refuse.reason));
  write.text(refuse.text, kMaxRefuseTextBytes);
  return write.take();
}

std::string check_hello(const Hello& hello) {
  if (hello.client == 0) return "The hello's client id is 0; it must be a random number other than 0.";
  if (hello.engine_id.empty() || hello.engine_id.size() > kMaxEngineIdBytes) {
    return "The hello's engine id is " + std::to_string(hello.engine_id.size()) + " bytes long; 1 to " +
           std::to_string(kMaxEngineIdBytes) + " are allowed.";
  }
  if (hello.release.size() > kMaxReleaseBytes) {
    return "The hello's release is " + std::to_string(hello.release.size()) + " bytes long; at most " +
           std::to_string(kMaxReleaseBytes) + " are allowed.";
  }
  if (hello.info.size() > kMaxHelloInfoBytes) {
    return "The hello's info is " + std::to_string(hello.info.size()) + " bytes long; at most " +
           std::to_string(kMaxHelloInfoBytes) + " are allowed.";
  }
  return {};
}

DecodedHello decode_hello(std::string_view bytes) {
  DecodedHello decoded;
  const auto refused = [&decoded](RefuseReason reason, std::string text) -> DecodedHello& {
    decoded.hello.reset();
    decoded.refuse = {reason, kWireVersion, {}, std::move(text)};
    return decoded;
  };
  const Prelude prelude = read_prelude(bytes, kMaxHelloBytes);
  if (prelude.known && prelude.wire != kWireVersion) {  // whose lengths may be other ones
    return refused(RefuseReason::version, other_version("The client", prelude.body, prelude.wire, "this server"));
  }
  if (!prelude.wrong.empty()) return refused(RefuseReason::bad_hello, "The hello cannot be read: " + prelude.wrong + ".");
  if (prelude.kind != static_cast<std::uint32_t>(Kind::hello)) {
    return refused(RefuseReason::bad_hello,
                   "The first message is of kind " + std::to_string(prelude.kind) + "; a hello, kind 1, must come first.");
  }
  Hello& hello = decoded.hello.emplace();
  hello.wire = prelude.wire;
  Reader read{prelude.body};
  read.text(hello.release, kMaxReleaseBytes, "release");
  read.number(hello.client, "client");
  read.number(hello.engine, "engine");
  read.text(hello.engine_id, kMaxEngineIdBytes, "engine_id");
  read.number(hello.nonce, "nonce");
  read.number(hello.last_incarnation, "last_incarnation");
  read.boolean(hello.read_only, "read_only");
  read.boolean(hello.writes_nothing, "writes_nothing");
  read.number(hello.pid, "pid");
  read.number(hello.start_time, "start_time");
  read.text(hello.info, kMaxHelloInfoBytes, "info");
  if (!read.wrong().empty()) return refused(RefuseReason::bad_hello, "The hello cannot be read: " + read.wrong() + ".");
  if (std::string wrong = check_hello(hello); !wrong.empty()) return refused(RefuseReason::bad_hello, std::move(wrong));
  return decoded;
}

DecodedAnswer decode_answer(std::string_view bytes) {
  DecodedAnswer decoded;
  const Prelude prelude = read_prelude(bytes, kMaxWelcomeBytes);
  if (!prelude.wrong.empty()) {
    decoded.error = "The server's answer cannot be read: " + prelude.wrong + ".";
    return decoded;
  }
  Reader read{prelude.body};
  if (prelude.kind == static_cast<std::uint32_t>(Kind::refuse)) {
    Refuse& refuse = decoded.refuse.emplace();
    refuse.wire = prelude.wire;
    std::uint32_t reason = 0;
    read.text(refuse.release, kMaxReleaseBytes, "release");
    read.number(reason, "reason");
    read.text(refuse.text, kMaxRefuseTextBytes, "text");
    // A later version may have reasons that are not known here; its sentence still says what is meant.
    refuse.reason = reason != 0 && reason < kRefuseReasonCount ? static_cast<RefuseReason>(reason) : RefuseReason::bad_hello;
  } else if (prelude.wire != kWireVersion) {
    decoded.version = true;
    decoded.error = other_version("The server", prelude.body, prelude.wire, "this client");
    return decoded;
  } else if (prelude.kind == static_cast<std::uint32_t>(Kind::welcome)) {
    Welcome& welcome = decoded.welcome.emplace();
    welcome.wire = prelude.wire;
    read.text(welcome.release, kMaxReleaseBytes, "release");
    read.number(welcome.incarnation, "incarnation");
    read.number(welcome.ring_bytes, "ring_bytes");
    read.boolean(welcome.has_arena, "has_arena");
    read.text(welcome.info, kMaxWelcomeInfoBytes, "info");
    if (read.wrong().empty() &&
        (welcome.ring_bytes < kMinRingBytes || welcome.ring_bytes > kMaxRingBytes || !std::has_single_bit(welcome.ring_bytes))) {
      decoded.welcome.reset();
      decoded.error = "The server's welcome names rings of an impossible size.";
      return decoded;
    }
  } else {
    decoded.error = "The server's answer is of kind " + std::to_string(prelude.kind) + ", neither a welcome nor a refusal.";
    return decoded;
  }
  if (!read.wrong().empty()) {
    decoded.welcome.reset();
    decoded.refuse.reset();
    decoded.error = "The server's answer cannot be read: " + read.wrong() + ".";
  }
  return decoded;
}

}  // namespace kvonce::transport
