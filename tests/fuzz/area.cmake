# SPDX-License-Identifier: Apache-2.0
# The fuzz targets. With clang and KVONCE_LIBFUZZER each is linked with libFuzzer, for long runs by hand:
#   cmake -S . -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=Debug -DKVONCE_SANITIZE=address -DKVONCE_LIBFUZZER=ON
#   ninja -C build/fuzz fuzz_ring && build/fuzz/fuzz_ring -max_len=4096 <working folder> tests/fuzz/corpus/ring
# Without it each has a driver of its own and is a test: the corpus, then a fixed number of changed inputs.
option(KVONCE_LIBFUZZER "Link the fuzz targets with libFuzzer (clang)" OFF)
if(KVONCE_SANITIZE)
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
  else()
    kvonce_add_test(fuzz_${name} TIMEOUT 300 LABELS fuzz
                    COMMAND fuzz_${name} ${KVONCE_FUZZ_RUNS} 1 "${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${name}")
  endif()
endfunction()

kvonce_fuzz_target(handshake transport/handshake.cpp)
kvonce_fuzz_target(ring transport/ring.cpp)
kvonce_fuzz_target(codec)
kvonce_fuzz_target(frames messages/frames.cpp)
