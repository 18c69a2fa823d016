# SPDX-License-Identifier: Apache-2.0
# Stores and ranks are processes of their own: the built kvonced, and process_rank, an engine process that does what it is told.
if(TARGET test_process AND TARGET kvonced AND TARGET kvonce)
  kvonce_sources(_helper tests/process/helper)
  add_executable(process_rank ${_helper})
  target_link_libraries(process_rank PRIVATE kvonce_options kvonce_runtime)
  add_dependencies(test_process kvonced kvonce process_rank)
  target_compile_definitions(test_process PRIVATE KVONCED_PROGRAM="$<TARGET_FILE:kvonced>" KVONCE_PROGRAM="$<TARGET_FILE:kvonce>" KVONCE_PROCESS_RANK="$<TARGET_FILE:process_rank>")
endif()
