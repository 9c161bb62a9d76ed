// Proof that a struct has no padding, inside or behind its members: what is
// copied into a snapshot byte for byte must be values only, or equal states
// would differ, and memory that nobody wrote would leave the process.
#pragma once

#include <cstddef>
#include <type_traits>

namespace mario {

/// Whether every byte of a T belongs to a value. The compiler knows that of
/// integers and what is made of them. Of floats it says no, as two that are
/// equal may differ in bits: a struct that holds some is specialised with
/// IsFilledBy.
template <class T>
inline constexpr bool kIsPacked = std::has_unique_object_representations_v<T>;
template <>
inline constexpr bool kIsPacked<float> = true;
template <class T, size_t kCount>
inline constexpr bool kIsPacked<T[kCount]> = kIsPacked<T>;

template <class Pointer>
struct MemberOf;
template <class Struct, class Member>
struct MemberOf<Member Struct::*> {
  using type = Member;
};

/// Whether the members that `kMembers` point to (`&Struct::member`) are packed
/// and as large as the struct together. One that is left out, or a hole, makes
/// the struct larger.
template <class Struct, auto... kMembers>
consteval bool IsFilledBy() {
  return std::is_trivially_copyable_v<Struct> &&
         (kIsPacked<typename MemberOf<decltype(kMembers)>::type> && ...) &&
         (sizeof(typename MemberOf<decltype(kMembers)>::type) + ...) ==
             sizeof(Struct);
}

}  // namespace mario
