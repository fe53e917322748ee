# The CUDA backend: on where a toolkit is found, unless it was asked for or refused.
include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(LONGSPAN_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(LONGSPAN_NVCC)
    set(CMAKE_CUDA_COMPILER ${LONGSPAN_NVCC})
  endif()
endif()
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  option(LONGSPAN_CUDA "Build the CUDA backend" ON)
else()
  option(LONGSPAN_CUDA "Build the CUDA backend" OFF)
endif()

option(LONGSPAN_CUDA_OBJECTS "Compile the CUDA backend, which nothing links, beside a build without it" OFF)

if(LONGSPAN_CUDA OR LONGSPAN_CUDA_OBJECTS)
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "LONGSPAN_CUDA and LONGSPAN_CUDA_OBJECTS need the CUDA toolkit: put nvcc on the PATH or set CUDACXX")
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # Machine code for Ampere and Hopper, and an intermediate form that newer devices compile.
    set(CMAKE_CUDA_ARCHITECTURES "80-real;90a-real;90-virtual" CACHE STRING "CUDA architectures")
  endif()
  enable_language(CUDA)
  # CMake 3.25 does not know that newer toolkits take C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  if(NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${PROJECT_SOURCE_DIR}/cmake/nvcc_report.sh)
    if(LONGSPAN_CCACHE)
      list(APPEND CMAKE_CUDA_COMPILER_LAUNCHER ${LONGSPAN_CCACHE})
    endif()
  endif()
  find_package(CUDAToolkit 12 REQUIRED)
  # Its library is loaded at run time, by several processes alone.
  find_path(LONGSPAN_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} DOC "the folder of nccl.h")
  if(LONGSPAN_NCCL_INCLUDE)
    message(STATUS "NCCL: ${LONGSPAN_NCCL_INCLUDE}/nccl.h")
  else()
    message(STATUS "NCCL: no nccl.h; devices of several processes exchange by way of the host")
  endif()
endif()

# longspan_cuda(TARGET): the backend's sources in it.
function(longspan_cuda target)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/*.cu
       ${PROJECT_SOURCE_DIR}/cuda/*.cc ${PROJECT_SOURCE_DIR}/cuda/*/*.cu ${PROJECT_SOURCE_DIR}/cuda/*/*.cc)
  if(LONGSPAN_NCCL_INCLUDE)
    set_source_files_properties(${PROJECT_SOURCE_DIR}/cuda/register.cc PROPERTIES COMPILE_DEFINITIONS
                                LONGSPAN_NCCL=1)
  else()
    list(FILTER sources EXCLUDE REGEX "/cuda/nccl/")
  endif()
  target_sources(${target} PRIVATE ${sources})
  # fmt 9 takes nvcc for a compiler without constexpr.
  target_compile_definitions(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
  # The toolkit's headers are for these sources alone, so that the commands of all others are the same
  # with and without the backend, and their objects serve both.
  target_link_libraries(${target} PRIVATE $<LINK_ONLY:CUDA::cudart_static> $<LINK_ONLY:CUDA::cublasLt>)
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  set_source_files_properties(${sources} PROPERTIES
                              COMPILE_OPTIONS "-isystem;${CUDAToolkit_INCLUDE_DIRS}")
  if(LONGSPAN_NCCL_INCLUDE)
    list(FILTER sources INCLUDE REGEX "/cuda/nccl/")
    set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS "-isystem;${LONGSPAN_NCCL_INCLUDE}")
  endif()
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Werror=all-warnings
      -Xcompiler=-Wall,-Wextra,-Werror -Xptxas=-v>)
endfunction()

# longspan_cuda_objects(): the backend's objects, and what registers it, as a part of `all` that nothing links.
# The emulated device shows that the same sources link and what they do (tests/CMakeLists.txt).
function(longspan_cuda_objects)
  add_library(longspan_cuda_objects OBJECT core/backends.cc)
  longspan_cuda(longspan_cuda_objects)
  target_compile_definitions(longspan_cuda_objects PRIVATE LONGSPAN_CUDA=1)
  target_link_libraries(longspan_cuda_objects PRIVATE longspan)
  set_target_properties(longspan_cuda_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
  longspan_warnings(longspan_cuda_objects)
  target_compile_options(longspan_cuda_objects PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
endfunction()
