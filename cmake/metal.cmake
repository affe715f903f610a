# The Metal kernels: as text for the program to carry, and as C++ for the tests' simulator.

# Reads the kernels' source for the build; plain C++ that runs on the building machine.
add_executable(kernel_tool ${PROJECT_SOURCE_DIR}/src/metal/tool/kernel_tool.cpp)
target_include_directories(kernel_tool PRIVATE ${PROJECT_SOURCE_DIR}/src)

# calla_metal_sources(target): the kernels' text becomes a part of the target.
function(calla_metal_sources target)
  set(root ${PROJECT_SOURCE_DIR}/src)
  file(GLOB kernels CONFIGURE_DEPENDS ${root}/metal/kernels/*.metal)
  file(GLOB headers CONFIGURE_DEPENDS ${root}/metal/kernels/*.h)
  set(output ${PROJECT_BINARY_DIR}/kernels/kernel_sources.cpp)
  add_custom_command(OUTPUT ${output} COMMAND kernel_tool sources ${root} ${output} ${kernels}
    DEPENDS ${kernels} ${headers} kernel_tool VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()

# calla_metal_bindings(list KERNELS.metal...): the C++ that includes each file and registers its kernels, as sources in `list`.
function(calla_metal_bindings list)
  set(sources)
  foreach(file IN LISTS ARGN)
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${file})
    string(REGEX REPLACE "^(src|tests)/" "" name ${name})
    set(source ${PROJECT_BINARY_DIR}/kernels/${name}.cpp)
    get_filename_component(folder ${source} DIRECTORY)
    file(MAKE_DIRECTORY ${folder})
    add_custom_command(OUTPUT ${source} COMMAND kernel_tool bind ${file} ${name} ${source}
      DEPENDS ${file} kernel_tool VERBATIM)
    list(APPEND sources ${source})
  endforeach()
  set(${list} ${sources} PARENT_SCOPE)
endfunction()

# The host's fused multiply-adds, which on x86 the compiler does not use unasked.
if(CALLA_TESTS AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
  include(CheckCXXSourceRuns)
  check_cxx_source_runs("int main() { return __builtin_cpu_supports(\"fma\") ? 0 : 1; }" CALLA_HOST_HAS_FMA)
endif()

# calla_metal_kernels(name SHAPE shape [CHECKED | LOOSE] SOURCES bindings...): an object library of the bindings for one
# model's shape: plain, with instrumentation of memory accesses, or with arithmetic as inexact as a GPU's may be.
function(calla_metal_kernels name)
  cmake_parse_arguments(KERNELS "CHECKED;LOOSE" "SHAPE" "SOURCES" ${ARGN})
  set(build plain)
  if(KERNELS_CHECKED)
    set(build checked)
  elseif(KERNELS_LOOSE)
    set(build loose)
  endif()
  set(macros ${PROJECT_BINARY_DIR}/kernels/shape_${KERNELS_SHAPE}.h)
  if(NOT TARGET metal_shape_${KERNELS_SHAPE})
    add_custom_command(OUTPUT ${macros} COMMAND kernel_tool shape ${KERNELS_SHAPE} ${macros} DEPENDS kernel_tool VERBATIM)
    add_custom_target(metal_shape_${KERNELS_SHAPE} DEPENDS ${macros})
  endif()
  add_library(${name} OBJECT ${KERNELS_SOURCES})
  add_dependencies(${name} metal_shape_${KERNELS_SHAPE})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests
    ${PROJECT_SOURCE_DIR}/tests/metal/simulator/shim)
  target_compile_options(${name} PRIVATE -include ${macros})
  # What Metal's compiler takes and C++ warns of: attributes, pragmas and helpers that a file does not use.
  target_compile_options(${name} PRIVATE -Wall -Wextra -Werror -Wdouble-promotion -Wno-attributes -Wno-unknown-pragmas
    -Wno-unused-function -Wno-psabi -Wno-deprecated-enum-enum-conversion
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_compile_definitions(${name} PRIVATE CALLA_BUILD=${build} CALLA_VARIANT=${build}_${KERNELS_SHAPE})
  # Kernels may look at memory as any type.
  target_compile_options(${name} PRIVATE -fno-strict-aliasing -fno-math-errno -fno-threadsafe-statics -fno-exceptions
    -fno-rtti)
  if(KERNELS_LOOSE)
    # Metal may contract a statement's products and sums even where it is asked for safe arithmetic.
    target_compile_definitions(${name} PRIVATE CALLA_LOOSE=1)
    target_compile_options(${name} PRIVATE -ffp-contract=fast $<$<BOOL:${CALLA_HOST_HAS_FMA}>:-mfma>)
  else()
    # Their arithmetic is what they say.
    target_compile_options(${name} PRIVATE -ffp-contract=off)
  endif()
  if(KERNELS_CHECKED)
    # The instrumentation's functions are the simulator's own. Vectorised accesses would not be instrumented. Version 4 of
    # the debugging information, because addr2line takes version 5's files for others.
    target_compile_options(${name} PRIVATE -O2 -gdwarf-4 -fsanitize=thread
      -fsanitize=shift-exponent,float-cast-overflow,bounds -fsanitize-recover=all)
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
      target_compile_options(${name} PRIVATE -fno-tree-vectorize --param tsan-instrument-func-entry-exit=0)
    else()
      target_compile_options(${name} PRIVATE -fno-vectorize -fno-slp-vectorize
        "SHELL:-mllvm -tsan-instrument-func-entry-exit=0")
    endif()
  else()
    target_compile_options(${name} PRIVATE -O3)
  endif()
endfunction()
