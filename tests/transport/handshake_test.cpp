// SPDX-License-Identifier: Apache-2.0
#include "transport/handshake.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <random>
#include <string>

namespace kvonce::transport {
namespace {

constexpr std::size_t kPreludeBytes = 20;

Hello some_hello() {
  Hello hello;
  hello.release = "1.2.3";
  hello.client = 0x1122334455667788;
  hello.engine = 9;
  hello.engine_id = "engine";
  hello.nonce = 10;
  hello.last_incarnation = 11;
  hello.read_only = true;
  hello.writes_nothing = false;
  hello.pid = 12;
  hello.start_time = 13;
  hello.info = std::string("opaque\0bytes", 12);
  return hello;
}

void set_number(std::string& bytes, std::size_t at, std::uint32_t number) {
  std::memcpy(bytes.data() + at, &number, sizeof(number));
}
// As a newer release of the same wire version would send it.
std::string with_more(std::string bytes, const std::string& more) {
  bytes += more;
  set_number(bytes, 16, static_cast<std::uint32_t>(bytes.size() - kPreludeBytes));
  return bytes;
}

}  // namespace

TEST_CASE("a hello comes back as it was, with fields of a newer release skipped") {
  const Hello sent = some_hello();
  for (const std::string& bytes : {encode(sent), with_more(encode(sent), "a later field")}) {
    const DecodedHello decoded = decode_hello(bytes);
    REQUIRE_MESSAGE(decoded.hello, decoded.refuse.text);
    const Hello& got = *decoded.hello;
    CHECK(got.wire == kWireVersion);
    CHECK(got.release == sent.release);
    CHECK(got.client == sent.client);
    CHECK(got.engine == sent.engine);
    CHECK(got.engine_id == sent.engine_id);
    CHECK(got.nonce == sent.nonce);
    CHECK(got.last_incarnation == sent.last_incarnation);
    CHECK(got.read_only);
    CHECK_FALSE(got.writes_nothing);
    CHECK(got.pid == sent.pid);
    CHECK(got.start_time == sent.start_time);
    CHECK(got.info == sent.info);
  }
}

TEST_CASE("the first bytes of a hello are the same for ever") {
  const std::string bytes = encode(some_hello());
  CHECK(bytes.substr(0, 8) == "kvonce\r\n");
  CHECK(bytes.substr(8, 8) == std::string("\5\0\0\0\1\0\0\0", 8));
  CHECK(bytes.substr(kPreludeBytes, 9) == std::string("\5\0\0\0", 4) + "1.2.3");
  CHECK(bytes.substr(kPreludeBytes + 9, 8) == "\x88\x77\x66\x55\x44\x33\x22\x11");
}

TEST_CASE("another wire version is told both versions, whatever else its hello has") {
  Hello hello = some_hello();
  hello.wire = 7;
  for (std::string bytes : {encode(hello), with_more(encode(hello), std::string(20'000, 'x')), encode(hello).substr(0, 40)}) {
    const DecodedHello decoded = decode_hello(bytes);
    CHECK_FALSE(decoded.hello);
    CHECK(decoded.refuse.reason == RefuseReason::version);
    CHECK(decoded.refuse.text ==
          "The client speaks wire version 7 (release 1.2.3), this server speaks wire version 5: both need the same.");
  }
  hello.release = "\x1b[31mred";
  CHECK(decode_hello(encode(hello)).refuse.text.find("(release ?[31mred)") != std::string::npos);
}

TEST_CASE("every cut hello is refused by a sentence") {
  const std::string good = encode(some_hello());
  for (std::size_t length = 0; length < good.size(); ++length) {
    std::string cut = good.substr(0, length);
    CHECK(decode_hello(cut).refuse.reason == RefuseReason::bad_hello);
    if (length < kPreludeBytes) continue;
    set_number(cut, 16, static_cast<std::uint32_t>(length - kPreludeBytes));  // cut, and it says so
    const DecodedHello decoded = decode_hello(cut);
    CHECK_FALSE(decoded.hello);
    CHECK(decoded.refuse.reason == RefuseReason::bad_hello);
    CHECK(decoded.refuse.text.find("it ends within the field ") != std::string::npos);
  }
}

TEST_CASE("length bombs are refused by what they announce") {
  std::string bytes = encode(some_hello());
  set_number(bytes, 16, 0xffffffffU);
  CHECK(decode_hello(bytes).refuse.text == "The hello cannot be read: it announces 4294967295 bytes, above the limit of 8172.");
  bytes = encode(some_hello());
  set_number(bytes, kPreludeBytes, 0xffffffffU);  // the release
  CHECK(decode_hello(bytes).refuse.text ==
        "The hello cannot be read: its field release is 4294967295 bytes long, above the limit of 255.");
  bytes = encode(some_hello());
  set_number(bytes, kPreludeBytes, 255);
  CHECK(decode_hello(bytes).refuse.text == "The hello cannot be read: it ends within the field release.");
}

TEST_CASE("values that are not allowed are refused by name") {
  const auto text_of = [](auto change) {
    Hello hello = some_hello();
    change(hello);
    const DecodedHello decoded = decode_hello(encode(hello));
    CHECK_FALSE(decoded.hello);
    CHECK(decoded.refuse.reason == RefuseReason::bad_hello);
    return decoded.refuse.text;
  };
  CHECK(text_of([](Hello& hello) { hello.client = 0; }) ==
        "The hello's client id is 0; it must be a random number other than 0.");
  CHECK(text_of([](Hello& hello) { hello.engine_id.clear(); }) == "The hello's engine id is 0 bytes long; 1 to 255 are allowed.");
  CHECK_FALSE(check_hello(Hello{}).empty());
  Hello longer = some_hello();
  longer.engine_id.assign(256, 'e');
  CHECK(check_hello(longer) == "The hello's engine id is 256 bytes long; 1 to 255 are allowed.");
  longer = some_hello();
  longer.info.assign(kMaxHelloInfoBytes + 1, 'i');
  CHECK(check_hello(longer) == "The hello's info is 4097 bytes long; at most 4096 are allowed.");
  std::string bytes = encode(some_hello());
  bytes[kPreludeBytes + 9 + 8 + 8 + 10 + 8 + 8] = 2;
  CHECK(decode_hello(bytes).refuse.text == "The hello cannot be read: its field read_only is 2, not 0 or 1.");
  CHECK(decode_hello("GET / HTTP/1.1\r\n\r\n  ").refuse.text ==
        "The hello cannot be read: it does not begin as a message of kvonce does.");
  CHECK(decode_hello("").refuse.text == "The hello cannot be read: it is 0 bytes long, less than the 20 of its beginning.");
  CHECK(decode_hello(encode(Welcome{})).refuse.text == "The first message is of kind 2; a hello, kind 1, must come first.");
  const std::size_t body = encode(some_hello()).size() - kPreludeBytes;
  CHECK(decode_hello(encode(some_hello()) + "x").refuse.text ==
        "The hello cannot be read: it announces " + std::to_string(body) + " bytes, and " + std::to_string(body + 1) + " came.");
}

TEST_CASE("welcome and refusal come back as they were") {
  Welcome welcome;
  welcome.release = "2.0";
  welcome.incarnation = 77;
  welcome.ring_bytes = kMinRingBytes;
  welcome.has_arena = true;
  welcome.info = std::string(kMaxWelcomeInfoBytes, 'w');
  for (const std::string& bytes : {encode(welcome), with_more(encode(welcome), "later")}) {
    const DecodedAnswer decoded = decode_answer(bytes);
    REQUIRE_MESSAGE(decoded.welcome, decoded.error);
    CHECK(decoded.welcome->release == "2.0");
    CHECK(decoded.welcome->incarnation == 77);
    CHECK(decoded.welcome->ring_bytes == kMinRingBytes);
    CHECK(decoded.welcome->has_arena);
    CHECK(decoded.welcome->info == welcome.info);
  }
  CHECK(encode(welcome).size() <= kMaxWelcomeBytes);
  for (const std::uint64_t bytes : {std::uint64_t{0}, kMinRingBytes + 1, 2 * kMaxRingBytes}) {
    welcome.ring_bytes = bytes;
    CHECK_FALSE(decode_answer(encode(welcome)).error.empty());
  }
  Refuse refuse{RefuseReason::draining, kWireVersion, "2.0", std::string(5000, 't')};
  DecodedAnswer decoded = decode_answer(encode(refuse));
  REQUIRE(decoded.refuse);
  CHECK(decoded.refuse->reason == RefuseReason::draining);
  CHECK(decoded.refuse->text == std::string(kMaxRefuseTextBytes, 't'));
  // Of a later version, with a reason that is not known here: its words still arrive.
  refuse = {static_cast<RefuseReason>(400), 9, "9.0", "Because."};
  decoded = decode_answer(encode(refuse));
  REQUIRE(decoded.refuse);
  CHECK(decoded.refuse->text == "Because.");
  CHECK(decoded.refuse->wire == 9);
}

TEST_CASE("an answer of another version, a cut one and a hello are no answer") {
  Welcome welcome;
  welcome.wire = 9;
  welcome.release = "3.0";
  DecodedAnswer decoded = decode_answer(encode(welcome));
  CHECK(decoded.version);
  CHECK(decoded.error ==
        "The server speaks wire version 9 (release 3.0), this client speaks wire version 5: both need the same.");
  CHECK_FALSE(decode_answer(encode(some_hello())).error.empty());
  welcome.wire = kWireVersion;
  welcome.ring_bytes = kMinRingBytes;
  const std::string good = encode(welcome);
  for (std::size_t length = 0; length < good.size(); ++length) {
    decoded = decode_answer(std::string_view(good).substr(0, length));
    CHECK_FALSE(decoded.welcome);
    CHECK_FALSE(decoded.refuse);
    CHECK_FALSE(decoded.error.empty());
  }
}

TEST_CASE("random bytes and random changes never crash, and each has one answer") {
  std::mt19937_64 random{17};
  const std::string good = encode(some_hello());
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    if (round % 2 == 0) {
      for (int i = 0; i < 1 + round % 5; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
      bytes.resize(bytes.size() - random() % 3);
    } else {
      bytes.assign(random() % 200, '\0');
      for (char& c : bytes) c = static_cast<char>(random());
    }
    const DecodedHello decoded = decode_hello(bytes);
    REQUIRE(decoded.hello.has_value() == (decoded.refuse.reason == RefuseReason::none));
    if (decoded.hello) CHECK(check_hello(*decoded.hello).empty());
    else CHECK(decoded.refuse.text.back() == '.');
    const DecodedAnswer answer = decode_answer(bytes);
    REQUIRE(int{answer.welcome.has_value()} + int{answer.refuse.has_value()} + int{!answer.error.empty()} == 1);
  }
}

}  // namespace kvonce::transport
