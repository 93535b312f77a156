#include "arrays.h"

#include <limits>
#include <utility>

#include "errors.h"

namespace dsv4::python {

namespace {

TokenId ToId(long long value) {
  if (value < std::numeric_limits<TokenId>::min() || value > std::numeric_limits<TokenId>::max()) {
    Raise(InvalidArgument("token id " + std::to_string(value) + " does not fit in 32 bits"));
  }
  return static_cast<TokenId>(value);
}

template <typename T>
std::vector<TokenId> CopyIds(const nb::ndarray<>& array) {
  const auto* const data = static_cast<const T*>(array.data());
  std::vector<TokenId> ids(array.shape(0));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = ToId(data[static_cast<int64_t>(i) * array.stride(0)]);
  return ids;
}

std::vector<TokenId> IdsOfArray(nb::handle object) {
  nb::ndarray<> array;
  if (!nb::try_cast(object, array)) throw nb::type_error("token ids must be a sequence of int or an array of int");
  if (array.ndim() != 1 || array.device_type() != nb::device::cpu::value) {
    throw nb::type_error("an array of token ids must have one axis and be on the CPU");
  }
  if (array.dtype() == nb::dtype<int32_t>()) return CopyIds<int32_t>(array);
  if (array.dtype() == nb::dtype<int64_t>()) return CopyIds<int64_t>(array);
  throw nb::type_error("an array of token ids must be of int32 or int64");
}

}  // namespace

std::vector<TokenId> ToIds(nb::handle ids) {
  if (nb::isinstance<nb::str>(ids)) throw nb::type_error("expected token ids, got str: encode it with a Tokenizer");
  const bool is_sequence = nb::isinstance<nb::list>(ids) || nb::isinstance<nb::tuple>(ids);
  if (!is_sequence && (nb::hasattr(ids, "__dlpack__") || PyObject_CheckBuffer(ids.ptr()) != 0)) return IdsOfArray(ids);
  std::vector<TokenId> out;
  for (const nb::handle id : nb::iter(ids)) {
    const nb::object number = nb::steal(PyNumber_Index(id.ptr()));
    if (!number.is_valid()) throw nb::python_error();
    const long long value = PyLong_AsLongLong(number.ptr());
    if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
    out.push_back(ToId(value));
  }
  return out;
}

nb::list ToList(const std::vector<TokenId>& ids) {
  nb::list list;
  for (const TokenId id : ids) list.append(id);
  return list;
}

LogitRows ToRows(const std::string& name) {
  if (name == "last") return LogitRows::kLast;
  if (name == "all") return LogitRows::kAll;
  if (name == "none") return LogitRows::kNone;
  Raise(InvalidArgument("logits is '" + name + "'; accepted: 'last', 'all', 'none'"));
}

nb::object ToArray(std::vector<float>&& logits, int64_t vocab_size) {
  auto* const owned = new std::vector<float>(std::move(logits));
  const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  const auto columns = static_cast<size_t>(vocab_size);
  return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<2>>(owned->data(), {owned->size() / columns, columns}, owner));
}

OutArray ToOut(nb::handle out, int64_t rows, int64_t vocab_size) {
  nb::ndarray<float, nb::c_contig, nb::device::cpu> array;
  if (!nb::try_cast(out, array, /*convert=*/false)) {
    throw nb::type_error("out must be a writable array of float32 on the CPU, without gaps (NumPy, torch)");
  }
  if (array.size() != static_cast<size_t>(rows * vocab_size)) {
    Raise(InvalidArgument("out has " + std::to_string(array.size()) + " values; " + std::to_string(rows) + " rows of " +
                          std::to_string(vocab_size) + " logits need " + std::to_string(rows * vocab_size)));
  }
  return {array.data(), array.size()};
}

}  // namespace dsv4::python
