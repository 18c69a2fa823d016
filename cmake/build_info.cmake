# SPDX-License-Identifier: Apache-2.0
# Run at every build (cmake -P): writes the header that `--version` prints from. The file is touched only when its text
# changes, so a build without a new commit compiles nothing again.
execute_process(
  COMMAND git -C "${SOURCE_DIR}" rev-parse --short=12 HEAD
  OUTPUT_VARIABLE KVONCE_COMMIT
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
  RESULT_VARIABLE _result)
if(NOT _result EQUAL 0)
  set(KVONCE_COMMIT "unknown")
endif()
configure_file("${SOURCE_DIR}/cmake/build_info.hpp.in" "${OUTPUT}" @ONLY)
