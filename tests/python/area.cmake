# SPDX-License-Identifier: Apache-2.0
# One CTest test for each test_*.py, run by the first interpreter of KVONCE_PYTHONS on the package of this build. Where there is none, one test
# that is skipped says why.
set(KVONCE_PYTHON_MISSING "KVONCE_PYTHONS is empty: the Python package is not built here (tools/test sets it)"
    CACHE STRING "Why the Python package is not built")
if(NOT KVONCE_PYTHONS)
  kvonce_add_test(python_package TIMEOUT 10 LABELS python COMMAND sh -c "echo \"$1\"; exit 77" sh "${KVONCE_PYTHON_MISSING}")
  set_tests_properties(python_package PROPERTIES SKIP_RETURN_CODE 77)
  return()
endif()

list(GET KVONCE_PYTHONS 0 _python)
execute_process(COMMAND "${_python}" -c "import sys; print('cp%d%d' % sys.version_info[:2])" OUTPUT_VARIABLE _tag
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
file(GLOB _tests CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_LIST_DIR}" "${CMAKE_CURRENT_LIST_DIR}/test_*.py")
foreach(_test IN LISTS _tests)
  cmake_path(GET _test STEM _stem)
  string(REGEX REPLACE "^test_" "python_" _name "${_stem}")
  kvonce_add_test(${_name} TIMEOUT 600 LABELS python COMMAND "${_python}" -m unittest -v ${_stem})
  set_property(TEST ${_name} PROPERTY WORKING_DIRECTORY "${CMAKE_CURRENT_LIST_DIR}")
  set_property(TEST ${_name} APPEND PROPERTY ENVIRONMENT "PYTHONPATH=${PROJECT_BINARY_DIR}/${_tag}/stage:${CMAKE_CURRENT_LIST_DIR}" PYTHONDONTWRITEBYTECODE=1)
endforeach()
