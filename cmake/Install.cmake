# An installed copy: the libraries, the headers below include/longspan (InstallHeaders.cmake), and the
# package that find_package(Longspan) reads.
include(CMakePackageConfigHelpers)

install(TARGETS longspan EXPORT LongspanTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(CODE "
  set(LONGSPAN_SOURCE_DIR \"${PROJECT_SOURCE_DIR}\")
  set(LONGSPAN_PUBLIC_FOLDERS \"${LONGSPAN_PUBLIC_FOLDERS}\")
  set(LONGSPAN_PUBLIC_HEADERS \"${LONGSPAN_PUBLIC_HEADERS}\")
  set(LONGSPAN_STAGED_DIR \"${PROJECT_BINARY_DIR}/installed_headers\")
  set(LONGSPAN_INCLUDE_DIR \"${CMAKE_INSTALL_INCLUDEDIR}/longspan\")")
install(SCRIPT cmake/InstallHeaders.cmake)

# The static library passes its private dependencies on to whoever links it: each imported target
# that longspan() links by pkg-config is looked up again there, under the same name.
set(LONGSPAN_CONFIG_DEPENDENCIES "find_dependency(PkgConfig)\n")
get_target_property(linked longspan LINK_LIBRARIES)
foreach(library IN LISTS linked)
  if(library MATCHES "^PkgConfig::(.+)$")
    set(name ${CMAKE_MATCH_1})
    string(APPEND LONGSPAN_CONFIG_DEPENDENCIES
           "if(NOT TARGET PkgConfig::${name})\n"
           "  pkg_check_modules(${name} REQUIRED QUIET IMPORTED_TARGET GLOBAL ${${name}_MODULE_NAME})\n"
           "endif()\n")
  elseif(library MATCHES "CUDA::")
    string(APPEND LONGSPAN_CONFIG_DEPENDENCIES "find_dependency(CUDAToolkit)\n")
  elseif(NOT library MATCHES "^(Threads|fmt)::" AND library MATCHES "^([A-Za-z0-9_]+)::")
    string(APPEND LONGSPAN_CONFIG_DEPENDENCIES "find_dependency(${CMAKE_MATCH_1})\n")
  endif()
endforeach()
configure_package_config_file(cmake/LongspanConfig.cmake.in
  ${PROJECT_BINARY_DIR}/LongspanConfig.cmake INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Longspan)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LongspanConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LongspanConfig.cmake ${PROJECT_BINARY_DIR}/LongspanConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Longspan)
install(EXPORT LongspanTargets NAMESPACE longspan:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Longspan)
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES examples/custom/custom_layer.h examples/custom/custom_model.cc examples/custom/custom_program.cc examples/custom/custom_task.cc
        DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples/custom)
