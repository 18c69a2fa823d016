// SPDX-License-Identifier: Apache-2.0
#include "apps/workload/trace_source.hpp"

#include "apps/workload/generators.hpp"
#include "apps/workload/trace_reader.hpp"

namespace kvonce::workload {

OpenedTrace open_trace(std::string_view spec, std::uint64_t seed) {
  constexpr std::string_view kBuiltin = "builtin:";
  if (!spec.starts_with(kBuiltin)) return open_trace_file(spec);
  const std::string_view name = spec.substr(kBuiltin.size());
  if (name == "chat") return {make_chat_generator(seed), {}};
  if (name == "agentic") return {make_agentic_generator(seed), {}};
  return {nullptr, "trace \"" + std::string(spec) + "\" is unknown; allowed are builtin:chat, builtin:agentic, a path, or - for standard input"};
}

}  // namespace kvonce::workload
