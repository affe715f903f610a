// Unicode normalisation form C.
#pragma once
#include <string>
#include <string_view>

namespace calla {

/// Whether a well-formed text of less than 2 GiB is known to be in NFC: quick for ASCII and Latin-1, linear
/// for any text. False for every text that is not, and for the odd one that is (with dozens of combining
/// marks on one letter).
bool is_known_nfc(std::string_view text);
/// NFC of a well-formed text of less than 512 MiB. Time is n log n in its bytes, for any text.
std::string to_nfc(std::string_view text);

}  // namespace calla
