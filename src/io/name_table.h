// NameTable: tensor name -> number. An open-addressing hash table; the names are stored elsewhere.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/check.h"

namespace dsv4 {

class NameTable {
 public:
  // Room for `max_names` names.
  explicit NameTable(size_t max_names) : slots_(std::bit_ceil(max_names * 2 + 1)) {}

  // The number of `name`, or -1.
  int32_t Find(std::string_view name) const { return slots_[SlotOf(name)].id; }

  // Adds `name` with number `id` >= 0 and returns -1. If `name` is present, changes nothing and returns its number.
  int32_t Insert(std::string_view name, int32_t id) {
    Slot& slot = slots_[SlotOf(name)];
    if (slot.id >= 0) return slot.id;
    DSV4_CHECK(id >= 0 && ++size_ * 2 <= slots_.size());
    slot = {name, id};
    return -1;
  }

 private:
  struct Slot {
    std::string_view name;
    int32_t id = -1;  // -1: free
  };

  size_t SlotOf(std::string_view name) const {
    const size_t mask = slots_.size() - 1;
    size_t i = std::hash<std::string_view>{}(name)&mask;
    while (slots_[i].id >= 0 && slots_[i].name != name) i = (i + 1) & mask;
    return i;
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace dsv4
