# CALLA_CUDA=AUTO|ON|OFF. AUTO builds the CUDA backend where there are both the toolkit and an NVIDIA driver, so that a
# machine without a GPU never pays for it.
set(CALLA_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE CALLA_CUDA PROPERTY STRINGS AUTO ON OFF)

set(CALLA_WITH_CUDA OFF)
if(NOT CALLA_CUDA STREQUAL OFF)
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER AND (CALLA_CUDA STREQUAL ON OR EXISTS /proc/driver/nvidia/version))
    set(CALLA_WITH_CUDA ON)
  elseif(CALLA_CUDA STREQUAL ON)
    message(FATAL_ERROR "CALLA_CUDA is ON and there is no CUDA compiler: install NVIDIA's toolkit, or set CMAKE_CUDA_COMPILER")
  endif()
endif()

if(CALLA_WITH_CUDA)
  # Machine code for every GPU from Ampere on that the toolkit knows. 90a, not 90: the matrix instructions of Hopper.
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 86-real 89-real 90a-real 100-real 120-real)
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # older versions of CMake know no more than C++17 for nvcc
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
  if(CALLA_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
endif()
