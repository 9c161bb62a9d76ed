// Compile-time proof that a struct has no padding between or after its members.
// Such structs are copied into snapshots byte by byte. With padding, equal
// states could differ, and uninitialised memory would leave the process.
#pragma once

#include <cstddef>
#include <type_traits>

namespace mario {

/// Whether every byte of a T belongs to a value. The compiler can tell for
/// integers and structs of integers. For floats it says no, because equal
/// floats may differ in their bits; a struct with floats is specialised with
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
/// and together as large as the struct. A member that is left out, or a hole,
/// makes the struct larger.
template <class Struct, auto... kMembers>
consteval bool IsFilledBy() {
  return std::is_trivially_copyable_v<Struct> &&
         (kIsPacked<typename MemberOf<decltype(kMembers)>::type> && ...) &&
         (sizeof(typename MemberOf<decltype(kMembers)>::type) + ...) ==
             sizeof(Struct);
}

}  // namespace mario
