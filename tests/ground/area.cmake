# SPDX-License-Identifier: Apache-2.0
kvonce_add_test(ground_exports TIMEOUT 60 LABELS ground unsanitized
                COMMAND "${CMAKE_CURRENT_SOURCE_DIR}/ground/exports.sh" $<TARGET_FILE:kvonce_shared>)
