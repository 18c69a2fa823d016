# SPDX-License-Identifier: Apache-2.0
# find_package(CAF COMPONENTS core [io]) -> targets CAF::core, CAF::io and the variable CAF_VERSION.
#
# CAF from 0.18 on installs a package file and is taken by that; Debian's libcaf-dev (0.17.6) has none, so its headers and
# shared libraries are found by hand.
find_package(CAF CONFIG QUIET COMPONENTS ${CAF_FIND_COMPONENTS})
if(CAF_FOUND)
  return()
endif()

find_path(CAF_INCLUDE_DIR NAMES caf/config.hpp)
mark_as_advanced(CAF_INCLUDE_DIR)
set(_kvonce_caf_required CAF_INCLUDE_DIR)
foreach(_component IN LISTS CAF_FIND_COMPONENTS)
  find_library(CAF_${_component}_LIBRARY NAMES caf_${_component})
  mark_as_advanced(CAF_${_component}_LIBRARY)
  list(APPEND _kvonce_caf_required CAF_${_component}_LIBRARY)
endforeach()

# 0.17 spells its version as one decimal number: 1706 is 0.17.6.
if(CAF_INCLUDE_DIR)
  file(STRINGS "${CAF_INCLUDE_DIR}/caf/config.hpp" _line REGEX "^#define CAF_VERSION [0-9]+$")
  string(REGEX REPLACE "[^0-9]" "" _number "${_line}")
  if(_number)
    math(EXPR _major "${_number} / 10000")
    math(EXPR _minor "(${_number} / 100) % 100")
    math(EXPR _patch "${_number} % 100")
    set(CAF_VERSION "${_major}.${_minor}.${_patch}")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CAF REQUIRED_VARS ${_kvonce_caf_required} VERSION_VAR CAF_VERSION)
if(NOT CAF_FOUND)
  return()
endif()

find_package(Threads REQUIRED)
foreach(_component IN LISTS CAF_FIND_COMPONENTS)
  if(NOT TARGET CAF::${_component})
    add_library(CAF::${_component} SHARED IMPORTED)
    set_target_properties(
      CAF::${_component}
      PROPERTIES IMPORTED_LOCATION "${CAF_${_component}_LIBRARY}"
                 INTERFACE_INCLUDE_DIRECTORIES "${CAF_INCLUDE_DIR}"
                 INTERFACE_LINK_LIBRARIES Threads::Threads)
  endif()
endforeach()
if(TARGET CAF::io)
  set_property(TARGET CAF::io APPEND PROPERTY INTERFACE_LINK_LIBRARIES CAF::core)
endif()
