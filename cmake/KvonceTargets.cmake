# SPDX-License-Identifier: Apache-2.0
# How folders become targets. Sources are globbed (CONFIGURE_DEPENDS), an empty or missing folder gives an empty library, and a
# program without sources no program.

# kvonce_sources(<variable> <folder>...): the .cpp files that lie directly in the folders.
function(kvonce_sources variable)
  set(_sources "")
  foreach(_folder IN LISTS ARGN)
    file(GLOB _found CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${_folder}/*.cpp")
    list(APPEND _sources ${_found})
  endforeach()
  set(${variable} "${_sources}" PARENT_SCOPE)
endfunction()

# kvonce_batch(<target> <size> [ALONE <source>...]): with KVONCE_UNITY the target's sources are compiled <size> at a time; those under ALONE
# stay by themselves. Names in anonymous namespaces are then shared by a batch, so a target's files have to use different ones.
function(kvonce_batch target size)
  cmake_parse_arguments(_arg "" "" "ALONE" ${ARGN})
  if(NOT KVONCE_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE BATCH UNITY_BUILD_BATCH_SIZE ${size})
  foreach(_source IN LISTS _arg_ALONE)
    set_source_files_properties("${PROJECT_SOURCE_DIR}/${_source}" TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
  # g++ takes a class of a .cpp for one of a header when the .cpp is included.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
endfunction()

# The third-party libraries as SYSTEM interface targets.
function(kvonce_define_imports)
  add_library(kvonce_xxhash INTERFACE)
  target_include_directories(kvonce_xxhash SYSTEM INTERFACE "${XXHASH_INCLUDE_DIR}")
  target_link_libraries(kvonce_xxhash INTERFACE "${XXHASH_LIBRARY}")

  add_library(kvonce_caf INTERFACE)
  target_link_libraries(kvonce_caf INTERFACE CAF::core Threads::Threads)

  # spdlog and fmt are compiled in (header-only) and hidden, so that an engine's own copies of them never meet ours.
  find_path(SPDLOG_INCLUDE_DIR spdlog/spdlog.h REQUIRED)
  find_path(FMT_INCLUDE_DIR fmt/format.h REQUIRED)
  add_library(kvonce_spdlog INTERFACE)
  target_include_directories(kvonce_spdlog SYSTEM INTERFACE "${SPDLOG_INCLUDE_DIR}" "${FMT_INCLUDE_DIR}")
  target_compile_definitions(kvonce_spdlog INTERFACE SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
endfunction()

# The generated header <build>/generated/kvonce_build_info.hpp; targets that include it link kvonce_build_info.
function(kvonce_define_build_info)
  set(_header "${PROJECT_BINARY_DIR}/generated/kvonce_build_info.hpp")
  if(KVONCE_CHECKS)
    set(_checks true)
  else()
    set(_checks false)
  endif()
  add_custom_target(
    kvonce_build_info_header
    COMMAND
      ${CMAKE_COMMAND} "-DSOURCE_DIR=${PROJECT_SOURCE_DIR}" "-DOUTPUT=${_header}" "-DKVONCE_VERSION=${PROJECT_VERSION}"
      "-DKVONCE_CAF_VERSION=${CAF_VERSION}" "-DKVONCE_BUILD_TYPE=${CMAKE_BUILD_TYPE}" "-DKVONCE_SANITIZER=${KVONCE_SANITIZE}"
      "-DKVONCE_CHECKS_BOOL=${_checks}" -P "${PROJECT_SOURCE_DIR}/cmake/build_info.cmake"
    BYPRODUCTS "${_header}"
    VERBATIM)
endfunction()

# kvonce_library(<name> FOLDERS <folder>... LINK <target>... [ALONE <source>...]): the library kvonce_<name>, static, fit for the
# shared one. Without a sanitizer it is compiled file by file, whatever KVONCE_UNITY says: an edit compiles one file again, no code
# depends on what lies beside it, and each file is seen to include what it uses.
function(kvonce_library name)
  cmake_parse_arguments(_arg "" "" "FOLDERS;LINK;ALONE" ${ARGN})
  kvonce_sources(_sources ${_arg_FOLDERS})
  if(_sources)
    add_library(kvonce_${name} STATIC ${_sources})
    target_link_libraries(kvonce_${name} PUBLIC kvonce_options ${_arg_LINK} Threads::Threads)
    add_dependencies(kvonce_${name} kvonce_build_info_header)
    if(KVONCE_SANITIZE)
      kvonce_batch(kvonce_${name} 5 ALONE ${_arg_ALONE})
    endif()
  else()
    add_library(kvonce_${name} INTERFACE)
    target_link_libraries(kvonce_${name} INTERFACE kvonce_options ${_arg_LINK} Threads::Threads)
  endif()
endfunction()

# kvonce_shared_library(<name>...): libkvonce.so of all these libraries' objects.
function(kvonce_shared_library)
  set(_map "${PROJECT_SOURCE_DIR}/cmake/exports.map")
  set(_objects "")
  set(_libraries "")
  foreach(_name IN LISTS ARGN)
    get_target_property(_type kvonce_${_name} TYPE)
    if(_type STREQUAL "STATIC_LIBRARY")
      list(APPEND _objects $<TARGET_OBJECTS:kvonce_${_name}>)
    endif()
  endforeach()
  file(WRITE "${PROJECT_BINARY_DIR}/generated/empty.cpp" "// keeps the link step alive when every folder is empty\n")
  add_library(kvonce_shared SHARED ${_objects} "${PROJECT_BINARY_DIR}/generated/empty.cpp")
  add_library(kvonce::kvonce ALIAS kvonce_shared)
  set_target_properties(kvonce_shared PROPERTIES OUTPUT_NAME kvonce LINK_DEPENDS "${_map}" VERSION ${PROJECT_VERSION}
                                                 SOVERSION ${PROJECT_VERSION_MAJOR})
  target_include_directories(kvonce_shared PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>")
  target_compile_features(kvonce_shared INTERFACE cxx_std_20)  # of the C++ headers
  target_link_libraries(kvonce_shared PRIVATE kvonce_options kvonce_caf kvonce_xxhash Threads::Threads ${CMAKE_DL_LIBS})
  target_link_options(kvonce_shared PRIVATE "-Wl,--version-script=${_map}" "-Wl,--as-needed")
  if(NOT KVONCE_SANITIZE)
    target_link_options(kvonce_shared PRIVATE "-Wl,--no-undefined")
  endif()
endfunction()

# kvonce_program(<name> FOLDER <folder> LINK <target>...): a program, when the folder has sources.
function(kvonce_program name)
  cmake_parse_arguments(_arg "" "FOLDER" "LINK" ${ARGN})
  kvonce_sources(_sources ${_arg_FOLDER})
  if(NOT _sources)
    return()
  endif()
  add_executable(${name} ${_sources})
  target_link_libraries(${name} PRIVATE kvonce_options ${_arg_LINK})
  add_dependencies(${name} kvonce_build_info_header)
  kvonce_batch(${name} 4)
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# kvonce_embedding_programs(<folder>): each .cpp of the folder becomes a program that sees the public headers and libkvonce.so
# only, as a user's program would.
function(kvonce_embedding_programs folder)
  kvonce_sources(_sources ${folder})
  foreach(_source IN LISTS _sources)
    cmake_path(GET _source STEM _stem)
    cmake_path(GET _source PARENT_PATH _parent)
    cmake_path(GET _parent FILENAME _folder_name)
    set(_target "${_folder_name}_${_stem}")
    add_executable(${_target} "${_source}")
    target_compile_options(${_target} PRIVATE $<TARGET_PROPERTY:kvonce_options,INTERFACE_COMPILE_OPTIONS>)
    target_link_options(${_target} PRIVATE $<TARGET_PROPERTY:kvonce_options,INTERFACE_LINK_OPTIONS>)
    target_link_libraries(${_target} PRIVATE kvonce::kvonce Threads::Threads)
  endforeach()
endfunction()

# kvonce_add_test(<name> TIMEOUT <seconds> LABELS <label>... COMMAND <command>...)
function(kvonce_add_test name)
  cmake_parse_arguments(_arg "" "TIMEOUT" "LABELS;COMMAND" ${ARGN})
  add_test(NAME ${name} COMMAND ${_arg_COMMAND})
  set(_tsan "suppressions=${PROJECT_SOURCE_DIR}/cmake/tsan.supp:halt_on_error=0:exitcode=66")
  set_tests_properties(
    ${name}
    PROPERTIES TIMEOUT ${_arg_TIMEOUT} LABELS "${_arg_LABELS}"
               ENVIRONMENT "TSAN_OPTIONS=${_tsan};UBSAN_OPTIONS=print_stacktrace=1;ASAN_OPTIONS=detect_stack_use_after_return=1")
endfunction()
