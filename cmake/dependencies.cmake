# Every dependency comes from the system: Debian's packages or Homebrew's, under the same names.
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(CLI11 2.1 REQUIRED)
find_package(Boost 1.74 REQUIRED)  # headers alone: Asio and Beast
find_package(spdlog 1.10 REQUIRED)
find_package(ZLIB REQUIRED)
if(APPLE AND NOT ICU_ROOT)
  # Homebrew keeps ICU apart from the system's, which has no headers.
  execute_process(COMMAND brew --prefix icu4c OUTPUT_VARIABLE ICU_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
find_package(ICU REQUIRED COMPONENTS uc)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8>=10.40)
if(CALLA_TESTS)
  find_package(GTest REQUIRED)
  find_package(Boost 1.74 REQUIRED COMPONENTS context)  # fibres of the Metal simulator
endif()
if(CALLA_BENCH)
  find_package(benchmark REQUIRED)
endif()
