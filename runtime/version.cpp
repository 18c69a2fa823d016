// SPDX-License-Identifier: Apache-2.0
#include <kvonce/version.hpp>

#include <kvonce_build_info.hpp>

namespace kvonce {

std::string version() {
  std::string text = std::string(build_info::kVersion) + " (" + build_info::kCommit + ", CAF " + build_info::kCafVersion +
                     ", " + build_info::kBuildType + ", checks " + (build_info::kChecks ? "on" : "off");
  if (build_info::kSanitizer[0] != '\0') text += std::string(", sanitizer ") + build_info::kSanitizer;
  return text + ")";
}

}  // namespace kvonce
