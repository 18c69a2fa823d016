# SPDX-License-Identifier: Apache-2.0
# The C API as a C program sees it: the public header, libkvonce.so, and the C compiler.
file(GLOB _capi_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_LIST_DIR}/c/*.c")
add_executable(capi_c ${_capi_sources})
target_compile_options(capi_c PRIVATE $<TARGET_PROPERTY:kvonce_options,INTERFACE_COMPILE_OPTIONS>)
target_link_options(capi_c PRIVATE $<TARGET_PROPERTY:kvonce_options,INTERFACE_LINK_OPTIONS>)
target_link_libraries(capi_c PRIVATE kvonce::kvonce)
kvonce_add_test(capi_c TIMEOUT 300 LABELS capi COMMAND capi_c)

# Installed into a folder of its own, moved, and used from there. A sanitized library has no place in a program that is not.
if(TARGET kvonced AND TARGET kvonce AND NOT KVONCE_SANITIZE)
  kvonce_add_test(capi_install TIMEOUT 300 LABELS capi
                  COMMAND "${CMAKE_CURRENT_LIST_DIR}/install.sh" "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}"
                          "${PROJECT_VERSION}" "${CMAKE_INSTALL_LIBDIR}")
endif()
