# SPDX-License-Identifier: Apache-2.0
# The built programs are what is tested, and the daemon's sources that decide without a process. kvonced_starter is an engine
# process in small: it finds or starts a store, and tells.
if(TARGET test_kvonced AND TARGET kvonced AND TARGET kvonce)
  add_executable(kvonced_starter "${CMAKE_CURRENT_LIST_DIR}/helper/starter.cpp")
  target_link_libraries(kvonced_starter PRIVATE kvonce_options kvonce_runtime nlohmann_json::nlohmann_json)
  target_sources(
    test_kvonced
    PRIVATE "${PROJECT_SOURCE_DIR}/apps/kvonced/settings.cpp" "${PROJECT_SOURCE_DIR}/apps/kvonced/sources.cpp"
            "${PROJECT_SOURCE_DIR}/apps/kvonced/config_file.cpp" "${PROJECT_SOURCE_DIR}/apps/kvonced/signals.cpp")
  add_dependencies(test_kvonced kvonce kvonced kvonced_starter)
  target_compile_definitions(
    test_kvonced
    PRIVATE KVONCE_PROGRAM="$<TARGET_FILE:kvonce>" KVONCED_PROGRAM="$<TARGET_FILE:kvonced>"
            KVONCED_STARTER="$<TARGET_FILE:kvonced_starter>")
endif()
