# Everything comes from the distribution; nothing is fetched.
include(CheckCXXCompilerFlag)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt 9 REQUIRED)

function(longspan_pkg name package debian)
  pkg_check_modules(${name} IMPORTED_TARGET ${package})
  if(NOT ${name}_FOUND)
    message(FATAL_ERROR "${package} is missing: apt-get install ${debian}")
  endif()
endfunction()

longspan_pkg(HWY libhwy libhwy-dev)
longspan_pkg(OPENBLAS openblas libopenblas-pthread-dev)

# Text, options and files: everything but the engine.
find_package(CLI11 REQUIRED)
find_package(nlohmann_json 3 REQUIRED)
find_package(PNG REQUIRED)
find_package(ZLIB REQUIRED)
longspan_pkg(TOMLPLUSPLUS tomlplusplus libtomlplusplus-dev)
longspan_pkg(XXHASH libxxhash libxxhash-dev)
longspan_pkg(SENTENCEPIECE sentencepiece libsentencepiece-dev)
longspan_pkg(CAIRO cairo libcairo2-dev)
longspan_pkg(UTF8PROC libutf8proc libutf8proc-dev)
# Its only flag concerns Windows, and every file would be compiled with it.
set_target_properties(PkgConfig::UTF8PROC PROPERTIES INTERFACE_COMPILE_OPTIONS "")

# For runs of several processes; everything else works without it.
pkg_check_modules(OMPI IMPORTED_TARGET ompi-c)
if(NOT OMPI_FOUND)
  message(STATUS "libopenmpi-dev is missing: runs of several processes (mpirun) are left out")
endif()
