# SPDX-License-Identifier: Apache-2.0
if(TARGET kvonce)
  kvonce_add_test(bench_wrong_options TIMEOUT 60 LABELS bench
                  COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/bench/wrong_options.sh" $<TARGET_FILE:kvonce>)
endif()
# Rank processes are the built program's.
if(TARGET test_bench AND TARGET kvonce AND TARGET kvonced)
  target_sources(test_bench PRIVATE "${PROJECT_SOURCE_DIR}/tests/cli/program.cpp")
  target_link_libraries(test_bench PRIVATE util)
  target_compile_definitions(test_bench PRIVATE KVONCE_PROGRAM="$<TARGET_FILE:kvonce>")
  add_dependencies(test_bench kvonce kvonced)
endif()
