// SPDX-License-Identifier: Apache-2.0
//
// What a replay came to, as JSON and as a table.
#pragma once

#include <string>
#include <vector>

#include "apps/kvonce/replay_options.hpp"
#include "apps/kvonce/replay_run.hpp"

namespace kvonce::apps {

struct ReplayOutcome {
  std::vector<ReplayFigures> runs;  ///< of plan.runs from its first on; fewer when it was interrupted, the last one then partial
  bool interrupted = false;
};

/// Numbers with units in their names. Bytes are of the scaled objects that were really moved, but for capacity_bytes and
/// full_bytes.
std::string replay_json(const ReplayPlan& plan, const ReplayOutcome& outcome);

/// Bytes as they would be at full size.
std::string replay_table(const ReplayPlan& plan, const ReplayOutcome& outcome);

}  // namespace kvonce::apps
