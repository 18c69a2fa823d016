# SPDX-License-Identifier: Apache-2.0
if(TARGET kvonce)
  kvonce_add_test(bench_wrong_options TIMEOUT 60 LABELS bench
                  COMMAND sh "${CMAKE_CURRENT_SOURCE_DIR}/bench/wrong_options.sh" $<TARGET_FILE:kvonce>)
endif()
