# Compile options of every target of the project: calla_options is linked by each.
add_library(calla_options INTERFACE)
target_include_directories(calla_options INTERFACE ${PROJECT_SOURCE_DIR}/src)
set(warnings -Wall -Wextra -Wpedantic -Werror -Wshadow -Wconversion -Wno-sign-conversion
  -Wold-style-cast -Woverloaded-virtual -Wnon-virtual-dtor -Wcast-align -Wundef)
if(APPLE)  # whose compilers nobody here has seen: what they warn of must not stand in an owner's way
  list(REMOVE_ITEM warnings -Werror)
endif()
target_compile_options(calla_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>")
# The arithmetic is float32 on purpose; a silent step to double would hide a slow path. (Clang's warning of this name also
# refuses the plain initialisation of a double.)
target_compile_options(calla_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wdouble-promotion>)
# A fused multiply-add rounds once where the formula rounds twice: results must not depend on the compiler's choice.
target_compile_options(calla_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

if(CALLA_SANITIZE)
  target_compile_options(calla_options INTERFACE
    -fsanitize=${CALLA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(calla_options INTERFACE -fsanitize=${CALLA_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # With instrumentation GCC 12 finds faults in std::string's operator+ that are none (GCC bugs 105329, 105651).
    # Nor does its thread sanitizer see the fences of Boost.Asio, and says so; the locks beside them it does see.
    target_compile_options(calla_options INTERFACE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-tsan)
  endif()
endif()
if(CALLA_FUZZ)
  target_compile_options(calla_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(calla_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # for ccache
endif()

# A room of the house: a static library of all sources of its folder, linked with the rooms below it.
function(calla_room folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp)
  string(REPLACE / _ name ${folder})
  add_library(calla_${name} STATIC ${sources})
  target_link_libraries(calla_${name} PUBLIC calla_options ${ARGN})
  # The JSON library is half of what most sources parse; the lowest room precompiles it for all.
  if(name STREQUAL base)
    target_precompile_headers(calla_base PRIVATE <nlohmann/json.hpp> <fmt/format.h>)
  else()
    target_precompile_headers(calla_${name} REUSE_FROM calla_base)
  endif()
endfunction()
