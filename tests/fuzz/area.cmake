# SPDX-License-Identifier: Apache-2.0
# The fuzz targets, each a test that runs the corpus and then a fixed number of changed inputs. With clang and KVONCE_LIBFUZZER (preset
# `fuzz`) they are libFuzzer's; it keeps what it finds in build/fuzz/tests/found. For as long as you like, by hand:
#   cmake --preset fuzz && ninja -C build/fuzz fuzz_ring && build/fuzz/fuzz_ring -max_len=4096 build/fuzz/tests/found/ring tests/fuzz/corpus/ring
# Without it each has a driver of its own, which knows nothing of coverage.
option(KVONCE_LIBFUZZER "Link the fuzz targets with libFuzzer (clang)" OFF)
if(KVONCE_SANITIZE AND NOT KVONCE_LIBFUZZER)
  set(_fuzz_runs_default 50000)
else()
  set(_fuzz_runs_default 300000)
endif()
set(KVONCE_FUZZ_RUNS ${_fuzz_runs_default} CACHE STRING "Changed inputs that each fuzz test runs")

# kvonce_fuzz_target(<name> <source>...): the sources under test are compiled in, so that they are instrumented.
function(kvonce_fuzz_target name)
  set(_sources fuzz/targets/${name}.cpp)
  foreach(_source IN LISTS ARGN)
    list(APPEND _sources "${PROJECT_SOURCE_DIR}/${_source}")
  endforeach()
  if(NOT KVONCE_LIBFUZZER)
    list(APPEND _sources fuzz/targets/driver.cpp)
  endif()
  add_executable(fuzz_${name} ${_sources})
  target_link_libraries(fuzz_${name} PRIVATE kvonce_options kvonce_xxhash Threads::Threads)
  if(KVONCE_LIBFUZZER)
    target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    set(_found "${CMAKE_CURRENT_BINARY_DIR}/found/${name}")
    file(MAKE_DIRECTORY "${_found}")
    kvonce_add_test(fuzz_${name} TIMEOUT 600 LABELS fuzz
                    COMMAND fuzz_${name} -runs=${KVONCE_FUZZ_RUNS} -seed=1 -max_len=4096 -timeout=10 -artifact_prefix=${_found}-
                            "${_found}" "${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${name}")
  else()
    kvonce_add_test(fuzz_${name} TIMEOUT 300 LABELS fuzz
                    COMMAND fuzz_${name} ${KVONCE_FUZZ_RUNS} 1 "${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${name}")
  endif()
endfunction()

kvonce_fuzz_target(handshake transport/handshake.cpp)
kvonce_fuzz_target(ring transport/ring.cpp)
kvonce_fuzz_target(codec)
kvonce_fuzz_target(frames messages/frames.cpp)
