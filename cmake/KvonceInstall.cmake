# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` gives besides the programs: headers, libkvonce.so, and how other builds find them. The installed tree may be
# moved: nothing in it names the prefix.
include(CMakePackageConfigHelpers)

function(kvonce_install_library)
  set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/kvonce")
  set_target_properties(kvonce_shared PROPERTIES EXPORT_NAME kvonce)
  install(TARGETS kvonce_shared EXPORT kvonceTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
                                                              INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/kvonce" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  install(EXPORT kvonceTargets NAMESPACE kvonce:: DESTINATION ${_package})
  configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/kvonceConfig.cmake.in" "${PROJECT_BINARY_DIR}/generated/kvonceConfig.cmake"
                                INSTALL_DESTINATION ${_package} PATH_VARS CMAKE_INSTALL_BINDIR)
  # Before 1.0 a minor release may change the API.
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/generated/kvonceConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/generated/kvonceConfig.cmake" "${PROJECT_BINARY_DIR}/generated/kvonceConfigVersion.cmake"
          DESTINATION ${_package})
  set(_pkgconfig "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
  file(RELATIVE_PATH KVONCE_PC_TO_PREFIX "/${_pkgconfig}" "/")
  string(REGEX REPLACE "/$" "" KVONCE_PC_TO_PREFIX "${KVONCE_PC_TO_PREFIX}")
  configure_file("${PROJECT_SOURCE_DIR}/cmake/kvonce.pc.in" "${PROJECT_BINARY_DIR}/generated/kvonce.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/generated/kvonce.pc" DESTINATION ${_pkgconfig})
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/examples/c" DESTINATION "${CMAKE_INSTALL_DOCDIR}/examples")
  install(FILES "${PROJECT_SOURCE_DIR}/examples/embedding.cpp" DESTINATION "${CMAKE_INSTALL_DOCDIR}/examples")
  install(FILES "${PROJECT_SOURCE_DIR}/docs/c.md" "${PROJECT_SOURCE_DIR}/docs/embedding.md" "${PROJECT_SOURCE_DIR}/LICENSE"
          DESTINATION ${CMAKE_INSTALL_DOCDIR})
endfunction()
