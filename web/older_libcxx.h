// What the C++ library of Debian's emscripten 3.1.6 lacks, and csrc/ uses.
// Included before each file of a build by emscripten; newer libraries need
// nothing of it.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string>
#include <version>

#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 14000
namespace std {
template <class To, class From>
constexpr To bit_cast(const From& from) {
  return __builtin_bit_cast(To, from);
}
inline to_chars_result to_chars(char* first, char* last, double value,
                                chars_format, int digits) {
  return {first + snprintf(first, last - first, "%.*g", digits, value), {}};
}
}  // namespace std
#endif

#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 15000
namespace std::ranges {
template <class Range, class Value>
void fill(Range&& range, const Value& value) {
  std::fill(range.begin(), range.end(), value);
}
template <class Range>
void sort(Range&& range) {
  std::sort(range.begin(), range.end());
}
}  // namespace std::ranges
#endif
