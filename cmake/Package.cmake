# What an installed copy has besides the library: the pages of a Debian package, which `cpack` makes in the
# build folder.
if(LONGSPAN_EXAMPLES)
  install(FILES cmake/package/longspan.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES cmake/package/longspan.bash RENAME longspan
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES cmake/package/longspan.zsh RENAME _longspan
          DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
endif()
# For programs without CMake. With CUDA a program links the toolkit too, as find_package(Longspan) says.
if(NOT LONGSPAN_CUDA)
  set(LONGSPAN_PKGCONFIG_REQUIRES
      "fmt libhwy openblas tomlplusplus libxxhash sentencepiece cairo libutf8proc libpng zlib")
  # From where the file is to the prefix, which `cmake --install` and packages choose.
  file(RELATIVE_PATH LONGSPAN_PKGCONFIG_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  configure_file(cmake/package/longspan.pc.in ${PROJECT_BINARY_DIR}/longspan.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/longspan.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME longspan)
set(CPACK_PACKAGE_VENDOR "Longspan")
set(CPACK_PACKAGE_CONTACT "The Longspan authors <longspan@example.org>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Transformers on long sequences: the program, the library and its headers")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Programs that link the library need what it is built with.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "fonts-dejavu-core, libcairo2-dev, libcli11-dev, libfmt-dev, libhwy-dev, \
libopenblas-pthread-dev, libpng-dev, libsentencepiece-dev, libtomlplusplus-dev, libutf8proc-dev, libxxhash-dev, \
nlohmann-json3-dev, zlib1g-dev")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "cmake, g++, pkg-config")
include(CPack)
