// SPDX-License-Identifier: Apache-2.0
//
// What the system allows this process, against what a store needs. Told before anything begins: a thread or a mapping that is
// refused later ends a process without a sentence.
#pragma once

#include <string>

#include "apps/kvonced/settings.hpp"

namespace kvonce::apps {

/// Raises the soft limit of descriptors as far as `max-clients` can use it and the hard one allows. A sentence when a limit is too
/// low for the store to start at all.
std::string fit_limits(const Settings& settings);

/// Until end_of_start(): a thread that cannot be started, or memory that runs out where nobody catches that, ends the process with
/// a sentence and the status of a store that did not start.
void begin_of_start();
void end_of_start();

}  // namespace kvonce::apps
