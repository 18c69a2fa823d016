// SPDX-License-Identifier: Apache-2.0
//
// What the two ends of a control link say before a frame travels: Hello, then Welcome or Refuse. Each is one message of
// [magic, 8 bytes][wire version, u32][kind, u32][bytes of the body, u32][body], little-endian. This prelude, the release text
// that begins every body, and the whole of Refuse are the same in all wire versions, so that any two versions can tell
// each other why they do not go together. Fields that a newer release of the same wire version appends to a body are skipped.
// Decoding trusts nothing: lengths are checked before anything is allocated. No sockets in here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvonce::transport {

inline constexpr std::uint32_t kWireVersion = 5;

inline constexpr std::size_t kMaxReleaseBytes = 255;
inline constexpr std::size_t kMaxEngineIdBytes = 255;
inline constexpr std::size_t kMaxHelloInfoBytes = 4U << 10U;
inline constexpr std::size_t kMaxWelcomeInfoBytes = 64U << 10U;
inline constexpr std::size_t kMaxRefuseTextBytes = 1023;
// Of one encoded message. A longer one is refused by its announced length, before its body is looked at.
inline constexpr std::size_t kMaxHelloBytes = 8U << 10U;
inline constexpr std::size_t kMaxWelcomeBytes = 72U << 10U;
inline constexpr std::uint64_t kMinRingBytes = 4U << 10U;
inline constexpr std::uint64_t kMaxRingBytes = 1ULL << 30U;

// Client to server, with one descriptor: the client's own pidfd (none where its kernel has no pidfd).
struct Hello {
  std::uint32_t wire = kWireVersion;
  std::string release;                 // version text of the library
  std::uint64_t client = 0;            // random, of this process's runtime; not 0
  std::uint64_t engine = 0;            // digest of the engine id
  std::string engine_id;               // its text, 1 to 255 bytes
  std::uint64_t nonce = 0;             // random for each attempt to connect: a repeated (client, nonce) is refused
  std::uint64_t last_incarnation = 0;  // of the store that it was connected to before; 0: none
  bool read_only = false;
  bool writes_nothing = true;    // it has no copy running into any slot of an earlier life
  std::uint32_t pid = 0;         // as it sees itself; what counts is what the kernel says
  std::uint64_t start_time = 0;  // clock ticks since boot (/proc/self/stat, field 22)
  std::string info;              // opaque to the transport, at most 4 KiB
};

// Server to client, with descriptors: [arena,] ring memory, bell to the server, bell to the client.
struct Welcome {
  std::uint32_t wire = kWireVersion;
  std::string release;
  std::uint64_t incarnation = 0;
  std::uint64_t ring_bytes = 0;  // of each direction; set by the server's transport
  bool has_arena = false;        // an arena descriptor comes first; set by the server's transport
  std::string info;              // opaque to the transport (layout of the arena, limits), at most 64 KiB
};

enum class RefuseReason : std::uint32_t {
  none = 0,
  bad_hello,    // not a well-formed hello, or one with values that are not allowed
  version,      // another wire version
  credentials,  // neither the server's user nor its group, or another process's descriptor
  too_many,     // clients, handshakes at a time, or failed handshakes
  draining,     // the server is stopping
  duplicate,    // a client with this id is connected, or this (client, nonce) has been used
  not_ready,    // the server is still starting, or out of descriptors for the moment
};
inline constexpr std::uint32_t kRefuseReasonCount = 8;
const char* to_string(RefuseReason reason);

struct Refuse {
  RefuseReason reason = RefuseReason::none;
  std::uint32_t wire = kWireVersion;
  std::string release;
  std::string text;  // a whole sentence: what was wrong and what is allowed
};

// Texts above their limits are cut, so that what is encoded can always be decoded.
std::string encode(const Hello& hello);
std::string encode(const Welcome& welcome);
std::string encode(const Refuse& refuse);

// `hello` is set, or `refuse` says why not (bad_hello, or version).
struct DecodedHello {
  std::optional<Hello> hello;
  Refuse refuse;  // without the release of this end
};
DecodedHello decode_hello(std::string_view bytes);

// What a server answers: one of the two is set, or `error` is a sentence (with `version` set when it is the wire version).
struct DecodedAnswer {
  std::optional<Welcome> welcome;
  std::optional<Refuse> refuse;
  bool version = false;
  std::string error;
};
DecodedAnswer decode_answer(std::string_view bytes);

// The sentence of Error for a hello whose values are not allowed; empty when they are. decode_hello asks it too.
std::string check_hello(const Hello& hello);

}  // namespace kvonce::transport
