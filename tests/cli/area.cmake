# SPDX-License-Identifier: Apache-2.0
# The built program is what is tested. The cells of real traces need the traces: KVONCE_TRACES names their folder.
if(TARGET test_cli AND TARGET kvonce)
  add_dependencies(test_cli kvonce)
  target_compile_definitions(test_cli PRIVATE KVONCE_PROGRAM="$<TARGET_FILE:kvonce>")
  kvonce_add_test(test_cli_reference TIMEOUT 1500 LABELS reference COMMAND test_cli --no-skip --test-suite=reference)
  set_tests_properties(test_cli_reference PROPERTIES SKIP_REGULAR_EXPRESSION "KVONCE_TRACES is not set")
endif()
