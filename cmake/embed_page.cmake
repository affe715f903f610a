# cmake -DINPUT=index.html -DOUTPUT=page_data.cpp -P embed_page.cmake
#
# Turns the web page into an array of bytes, and its inline scripts and styles into the hashes of a Content-Security-Policy.
cmake_minimum_required(VERSION 3.22)

# base64(hex result): of an even number of hexadecimal digits
function(base64 hex result)
  set(alphabet ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  string(LENGTH "${hex}" digits)
  set(text "")
  foreach(at RANGE 0 ${digits} 6)
    math(EXPR left "${digits} - ${at}")
    if(left LESS_EQUAL 0)
      break()
    endif()
    string(SUBSTRING "${hex}0000" ${at} 6 group)
    foreach(shift 18 12 6 0)
      math(EXPR index "(0x${group} >> ${shift}) & 63")
      string(SUBSTRING "${alphabet}" ${index} 1 letter)
      # A group of one byte has two letters, one of two bytes three.
      math(EXPR used "(18 - ${shift}) / 6 * 6")
      math(EXPR bits "${left} * 4")
      if(used LESS bits)
        string(APPEND text "${letter}")
      else()
        string(APPEND text "=")
      endif()
    endforeach()
  endforeach()
  set(${result} "${text}" PARENT_SCOPE)
endfunction()

# hashes(page tag result): 'sha256-...' of each <tag>...</tag>
function(hashes page tag result)
  set(found "")
  while(TRUE)
    string(FIND "${page}" "<${tag}>" begin)
    if(begin EQUAL -1)
      break()
    endif()
    string(LENGTH "<${tag}>" length)
    math(EXPR begin "${begin} + ${length}")
    string(SUBSTRING "${page}" ${begin} -1 page)
    string(FIND "${page}" "</${tag}>" end)
    string(SUBSTRING "${page}" 0 ${end} content)
    string(SHA256 hex "${content}")
    base64(${hex} digest)
    string(APPEND found " 'sha256-${digest}'")
  endwhile()
  if(found STREQUAL "")
    set(found " 'none'")
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

file(READ "${INPUT}" page)
hashes("${page}" script scripts)
hashes("${page}" style styles)
file(READ "${INPUT}" hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")

file(WRITE "${OUTPUT}" "// Made by embed_page.cmake.
#include \"server/page_data.h\"

namespace calla::server {
namespace {
constexpr unsigned char bytes[] = {
${bytes}
};
}  // namespace

std::string_view page_html() {
  return {reinterpret_cast<const char*>(bytes), sizeof(bytes)};
}

const std::string_view page_policy =
    \"default-src 'none'; script-src${scripts}; style-src${styles}; img-src data:; connect-src 'self'; \"
    \"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'\";

}  // namespace calla::server
")
