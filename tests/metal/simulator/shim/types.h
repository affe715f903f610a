// Metal's scalar types. half and bfloat only hold values: their arithmetic would round differently from a
// GPU's, so the shim has conversions alone.
#pragma once

using uchar = unsigned char;
using ushort = unsigned short;
using uint = unsigned int;
using ulong = unsigned long;
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
using size_t = unsigned long;
using ptrdiff_t = long;

namespace metal {
inline namespace CALLA_VARIANT {

template <class To, class From>
To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To to;
  __builtin_memcpy(static_cast<void*>(&to), &from, sizeof(To));
  return to;
}

/// IEEE binary16.
class half {
 public:
  half() = default;
  explicit half(float value) : bits_(round(value)) {}
  explicit half(int value) : half(static_cast<float>(value)) {}
  explicit half(uint value) : half(static_cast<float>(value)) {}
  explicit operator float() const {
    const uint sign = (bits_ & 0x8000U) << 16;
    const uint magnitude = bits_ & 0x7fffU;
    if (magnitude >= 0x7c00U) return as_type<float>(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13);
    // A subnormal's exponent is put right by the product, which is exact.
    return as_type<float>(sign | magnitude << 13) * 0x1p112f;
  }

 private:
  static ushort round(float value) {
    const uint bits = as_type<uint>(value);
    const uint sign = bits >> 16 & 0x8000U;
    const uint magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U) return static_cast<ushort>(sign | 0x7e00U);
    if (magnitude >= 0x477ff000U) return static_cast<ushort>(sign | 0x7c00U);  // 65520 and more: infinite
    if (magnitude < 0x38800000U) {  // subnormal: the sum's rounding leaves multiples of 2^-24
      const float shifted = as_type<float>(magnitude) + 0.5f;
      return static_cast<ushort>(sign | (as_type<uint>(shifted) - 0x3f000000U));
    }
    const uint rounded = magnitude + 0xfffU + (magnitude >> 13 & 1U);
    return static_cast<ushort>(sign | (rounded - 0x38000000U) >> 13);
  }

  ushort bits_;
};

/// The upper half of a float32, rounded to nearest even.
class bfloat {
 public:
  bfloat() = default;
  explicit bfloat(float value) {
    const uint bits = as_type<uint>(value);
    const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
    bits_ = static_cast<ushort>(nan ? bits >> 16 | 0x40U : (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
  }
  explicit operator float() const { return as_type<float>(static_cast<uint>(bits_) << 16); }

 private:
  ushort bits_;
};

template <class A, class B>
inline constexpr bool is_same_v = false;
template <class A>
inline constexpr bool is_same_v<A, A> = true;

template <class T>
inline constexpr bool is_storage_only = is_same_v<T, half> || is_same_v<T, bfloat>;
template <class T>
inline constexpr bool is_floating = is_same_v<T, float>;

}  // namespace CALLA_VARIANT
}  // namespace metal

using metal::as_type;
using metal::bfloat;
using metal::half;
