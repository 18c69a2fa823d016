// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/link_compare/compare.hpp"

namespace kvonce::bench::link_compare {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kHelp[] =
    "kvonce_link_compare: typed messages between two processes of this host, over CAF's BASP and over the control link\n"
    "  --repeat N       runs of each; the median counts [5]\n"
    "  --round-trips N  questions one at a time [20000]\n"
    "  --batches N      questions of 32 keys, 64 in flight [40000]\n"
    "  --spin-us N      both ends of the link look so long before they sleep [0]\n"
    "  --json           print JSON\n";

// Nearest rank; 0 for none.
double quantile(std::vector<double> samples, double p) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  return samples[std::min(samples.size() - 1, static_cast<std::size_t>(p * static_cast<double>(samples.size())))];
}

// Of each figure by itself.
Json medians(const std::vector<Json>& runs) {
  Json out;
  for (const auto& [name, value] : runs.front().items()) {
    std::vector<double> values;
    for (const Json& run : runs) values.push_back(run[name].get<double>());
    out[name] = quantile(std::move(values), 0.5);
  }
  out["runs"] = runs;
  return out;
}

Json json_of(const Result& result, const Load& load) {
  Json out;
  const Figures& trips = result.round_trips;
  out["round_trip_us_p50"] = quantile(trips.latency_us, 0.5);
  out["round_trip_us_p99"] = quantile(trips.latency_us, 0.99);
  out["round_trip_cpu_us"] = trips.cpu_seconds * 1e6 / static_cast<double>(trips.messages);
  const Figures& batches = result.batches;
  out["batches_per_s"] = static_cast<double>(batches.messages) / batches.seconds;
  out["keys_per_s"] = static_cast<double>(batches.messages * load.keys_per_batch) / batches.seconds;
  out["batch_cpu_us"] = batches.cpu_seconds * 1e6 / static_cast<double>(batches.messages);
  return out;
}

// Each in a process of its own, which has no threads yet when it forks its partner.
Json in_child(Result (*measure)(const Load&), const Load& load) {
  int ends[2];
  if (::pipe(ends) != 0) std::exit(2);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[0]);
    const std::string text = json_of(measure(load), load).dump();
    std::_Exit(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 2);
  }
  ::close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t bytes; (bytes = ::read(ends[0], part, sizeof(part))) > 0;) text.append(part, static_cast<std::size_t>(bytes));
  ::close(ends[0]);
  ::waitpid(pid, nullptr, 0);
  Json out = Json::parse(text, nullptr, false);
  if (out.is_discarded()) {
    std::fprintf(stderr, "a measurement failed\n");
    std::exit(2);
  }
  return out;
}

std::uint64_t number_of(const char* option, const char* text) {
  char* end = nullptr;
  const unsigned long long value = text == nullptr ? 0 : std::strtoull(text, &end, 10);
  if (text == nullptr || *text < '0' || *text > '9' || *end != '\0' || value > 1'000'000'000) {
    std::fprintf(stderr, "%s: '%s' is no number from 0 to 1,000,000,000\n", option, text == nullptr ? "" : text);
    std::exit(2);
  }
  return value;
}

int run(int argc, char** argv) {
  Load load;
  std::uint64_t repeat = 5;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const auto value = [&] { return number_of(argv[i - 1], argv[i]); };
    if (option == "--json") json = true;
    else if (option == "--repeat") ++i, repeat = value();
    else if (option == "--round-trips") ++i, load.round_trips = value();
    else if (option == "--batches") ++i, load.batches = value();
    else if (option == "--spin-us") ++i, load.spin = std::chrono::microseconds{value()};
    else {
      std::fputs(kHelp, option == "--help" ? stdout : stderr);
      return option == "--help" ? 0 : 2;
    }
  }
  if (repeat == 0 || load.round_trips == 0 || load.batches < load.batches_in_flight) {
    std::fprintf(stderr, "--repeat and --round-trips need at least 1, --batches at least %d\n",
                 static_cast<int>(load.batches_in_flight));
    return 2;
  }
  std::vector<Json> basp;
  std::vector<Json> link;
  for (std::uint64_t i = 0; i < repeat; ++i) {
    basp.push_back(in_child(measure_basp, load));
    link.push_back(in_child(measure_link, load));
  }
  const Json out{{"basp", medians(basp)}, {"link", medians(link)}};
  if (json) {
    std::printf("%s\n", out.dump(2).c_str());
    return 0;
  }
  std::printf("%-34s %12s %12s\n", "two processes, medians of the runs", "BASP", "link");
  const auto line = [&out](const char* name, const char* key, double scale) {
    std::printf("%-34s %12.1f %12.1f\n", name, out["basp"][key].get<double>() * scale, out["link"][key].get<double>() * scale);
  };
  line("round trip, us, p50", "round_trip_us_p50", 1);
  line("round trip, us, p99", "round_trip_us_p99", 1);
  line("round trip, us of CPU, both", "round_trip_cpu_us", 1);
  line("batches of 32 keys, thousand/s", "batches_per_s", 1e-3);
  line("the same, million keys/s", "keys_per_s", 1e-6);
  line("batch, us of CPU, both", "batch_cpu_us", 1);
  return 0;
}

}  // namespace
}  // namespace kvonce::bench::link_compare

int main(int argc, char** argv) { return kvonce::bench::link_compare::run(argc, argv); }
