// SPDX-License-Identifier: Apache-2.0
//
// What all parts of one run share.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "tests/sim/content.hpp"
#include "tests/sim/faults.hpp"
#include "tests/sim/knobs.hpp"
#include "tests/sim/probes.hpp"
#include "tests/sim/random.hpp"
#include "tests/sim/schedule.hpp"

namespace kvonce::sim {

struct Sim {
  Sim(std::uint64_t seed_, const Faults& faults_, bool trace_)
      : seed(seed_), faults(faults_), trace(trace_), random(seed_), knobs(make_knobs(random, Random(mix64(seed_, 0x6e616d6573)))) {}

  std::uint64_t seed;
  Faults faults;
  bool trace;
  Random random;
  Knobs knobs;
  Schedule schedule;
  Probes probes;
  Announced announced;
  bool ending = false;  // the workload is done: everything comes to its end, nothing is tried again
  std::uint64_t digest = 0;
  std::uint32_t violated = 0;  // number of the promise; 0: none so far
  std::string sentence;

  Time now() const { return schedule.now(); }
  bool failed() const { return violated != 0; }

  /// Folds an event into the run's digest, and prints it when the run is traced.
  void note(const char* what, std::uint64_t a = 0, std::uint64_t b = 0, std::uint64_t c = 0) {
    digest = mix64(digest ^ schedule.now(), mix64(a, mix64(b, c)) ^ static_cast<unsigned char>(what[2]));
    if (trace) {
      std::printf("%12.6f ms  %-22s %08llx %llu %llu\n", static_cast<double>(schedule.now()) / 1e6, what,
                  static_cast<unsigned long long>(a), static_cast<unsigned long long>(b),
                  static_cast<unsigned long long>(c));
    }
  }
  /// The first violation of a run is kept; the run ends with it.
  void violate(std::uint32_t promise, std::string text) {
    if (violated != 0) return;
    violated = promise;
    sentence = std::move(text);
    if (trace) std::printf("VIOLATED P%u: %s\n", promise, sentence.c_str());
  }
};

/// Of the knobs' namespaces; ends with its number, of one digit.
inline std::string namespace_text(std::uint32_t ns) { return "model-" + std::to_string(ns); }

/// The digits of page_name() as a number.
inline std::uint64_t page_tag(const PageHash& page) {
  return __builtin_bswap32(static_cast<std::uint32_t>(page.words[0]));
}
inline std::string page_name(const PageHash& page) { return page.to_hex().substr(0, 8); }

}  // namespace kvonce::sim
