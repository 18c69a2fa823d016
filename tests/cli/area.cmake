# SPDX-License-Identifier: Apache-2.0
# The built programs are what is tested. The cells of real traces need the traces: KVONCE_TRACES names their folder.
if(TARGET test_cli AND TARGET kvonce AND TARGET kvonced)
  target_sources(test_cli PRIVATE "${PROJECT_SOURCE_DIR}/tests/kvonced/process.cpp")
  add_dependencies(test_cli kvonce kvonced)
  target_compile_definitions(test_cli PRIVATE KVONCE_PROGRAM="$<TARGET_FILE:kvonce>" KVONCED_PROGRAM="$<TARGET_FILE:kvonced>")
  kvonce_add_test(test_cli_reference TIMEOUT 1500 LABELS reference COMMAND test_cli --no-skip --test-suite=reference)
  set_tests_properties(test_cli_reference PROPERTIES SKIP_REGULAR_EXPRESSION "KVONCE_TRACES is not set")
endif()
