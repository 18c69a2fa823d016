// SPDX-License-Identifier: Apache-2.0
#include "messages/actors.hpp"

namespace kvonce::messages {

void register_messages(caf::actor_system_config& config) {
  compat::register_types<caf::id_block::kvonce_messages>(config);
}

}  // namespace kvonce::messages
