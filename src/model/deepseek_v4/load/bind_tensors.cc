#include "model/deepseek_v4/load/bind_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/str.h"
#include "model/deepseek_v4/load/nearest_name.h"
#include "model/deepseek_v4/schema/bind_names.h"
#include "model/deepseek_v4/schema/other_tensors.h"

namespace dsv4::deepseek_v4 {

namespace {

float Bf16ToF32(const uint8_t* p) {
  const uint32_t bits = static_cast<uint32_t>(p[0]) << 16 | static_cast<uint32_t>(p[1]) << 24;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

float LoadF32(const uint8_t* p) {
  float value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// [count, a, b], or [a, b] when count is 0.
Shape Stacked(int64_t count, int64_t a, int64_t b) { return count == 0 ? Shape{a, b} : Shape{count, a, b}; }

}  // namespace

void WeightStorage::FreeDeleter::operator()(void* p) const { std::free(p); }

void* WeightStorage::Allocate(int64_t num_bytes) {
  constexpr size_t kAlign = 64;
  const size_t size = (static_cast<size_t>(num_bytes) + kAlign - 1) / kAlign * kAlign;
  void* p = std::aligned_alloc(kAlign, size);
  if (p == nullptr) throw std::bad_alloc();
  copies.emplace_back(p);
  return p;
}

TensorBinder::TensorBinder(std::shared_ptr<const TensorSource> source, const BindOptions& options)
    : storage_(std::make_shared<WeightStorage>()),
      source_(*source),
      options_(options),
      used_(source->tensors().size()),
      names_(source->tensors().size()) {
  storage_->source = std::move(source);
  official_.reserve(source_.tensors().size());
  for (const FileTensor& tensor : source_.tensors()) {
    const std::string_view name = OfficialName(tensor.name, rewritten_);
    const auto id = static_cast<int32_t>(official_.size());
    official_.push_back(name);
    if (const int32_t other = names_.Insert(name, id); other >= 0) {
      const FileTensor& first = source_.tensors()[static_cast<size_t>(other)];
      Fail(tensor, StrCat("is present twice: '", first.name, "' in '", source_.FileOf(first), "' is the same tensor"));
    }
  }
  RefuseForeign();
}

// The first tensor that no checkpoint of an accepted format has.
void TensorBinder::RefuseForeign() {
  const ForeignFormat* found = nullptr;
  const FileTensor* sign = nullptr;
  for (size_t i = 0; i < official_.size(); ++i) {
    const FileTensor& tensor = source_.tensors()[i];
    if (IsRowOfTransformers58(official_[i])) {
      return Fail(Unsupported(StrCat("'", source_.FileOf(tensor), "': tensor '", tensor.name,
                                     "' is one row of a matrix that transformers 5.8 cut by mistake; save the model "
                                     "again with transformers 5.9 or later")));
    }
    const ForeignFormat* format = ForeignFormatOf(official_[i]);
    if (format == nullptr || (found != nullptr && found <= format)) continue;
    found = format;
    sign = &tensor;
  }
  if (found == nullptr) return;
  Fail(Unsupported(StrCat("'", source_.FileOf(*sign), "': tensor '", sign->name, "' belongs to ", found->what,
                          ", which dsv4 does not read; ", kUseAnother)));
}

void TensorBinder::Fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void TensorBinder::Fail(const FileTensor& tensor, std::string_view what) {
  Fail(DataLoss(StrCat("'", source_.FileOf(tensor), "': tensor '", tensor.name, "' ", what)));
}

// Null if it is not present, or after an error.
const FileTensor* TensorBinder::Find(std::string_view name) {
  const int32_t id = status_.ok() ? names_.Find(name) : -1;
  if (id < 0) return nullptr;
  used_[static_cast<size_t>(id)] = true;
  return &source_.tensors()[static_cast<size_t>(id)];
}

const FileTensor* TensorBinder::Take(std::string_view name, std::string_view expected) {
  const FileTensor* tensor = Find(name);
  if (tensor == nullptr) {
    if (status_.ok()) missing_ = name;
    Fail(NotFound(StrCat("'", source_.where(), "': tensor '", name, "' is missing; expected ", expected)));
  }
  return tensor;
}

void TensorBinder::NameNearest(const Config& config) {
  const int nearest = NearestUnknown(config, missing_, official_);
  if (nearest < 0) return;
  const FileTensor& tensor = source_.tensors()[static_cast<size_t>(nearest)];
  status_ = NotFound(StrCat(status_.message(), "; the most similar tensor that is unknown is '", tensor.name,
                            "' of shape ", tensor.shape.ToString()));
}

bool TensorBinder::HasShape(const FileTensor& tensor, const Shape& expected, std::string_view why) {
  if (tensor.shape == expected) return true;
  Fail(tensor, StrCat("has shape ", tensor.shape.ToString(), ", expected ", expected.ToString(), why));
  return false;
}

void TensorBinder::Account(const FileTensor& tensor, std::string_view format, int64_t elements) {
  report_.weight_bytes += tensor.num_bytes;
  const auto same = [&](const FormatSummary& f) { return f.format == format; };
  auto it = std::find_if(report_.formats.begin(), report_.formats.end(), same);
  if (it == report_.formats.end()) it = report_.formats.insert(it, {std::string(format), 0, 0, 0});
  it->num_tensors += elements > 0 ? 1 : 0;  // scales are counted with their matrix and have no elements of their own
  it->num_parameters += elements;
  it->bytes += tensor.num_bytes;
}

const FileTensor* TensorBinder::TakeScale(std::string_view name, const WeightFormatInfo& format,
                                          std::string_view expected) {
  if (format.scale_name != ".scale") return Take(StrCat(name, format.scale_name), expected);
  const FileTensor* scale = Find(StrCat(name, ".scale"));
  if (scale == nullptr) scale = Find(StrCat(name, ".weight_scale"));
  if (scale == nullptr)
    Take(StrCat(name, ".scale"), StrCat(expected, " (also read as .weight_scale_inv, .weight_scale)"));
  return scale;
}

void TensorBinder::ResolveScales(std::string_view name, Parts& parts, int64_t count, int64_t rows, int64_t cols) {
  const WeightFormatInfo& f = InfoOf(parts.format);
  if (!f.grid() && cols % f.block_cols != 0)
    return Fail(*parts.codes, StrCat("is ", f.family, " of ", cols, " columns: not a multiple of ", f.block_cols));
  const Shape blocks = Stacked(count, CeilDiv(rows, f.block_rows), CeilDiv(cols, f.block_cols));
  const std::string types = StrCat(NameOf(f.scale), f.f32_scale ? " or F32" : "");
  parts.block_scale = TakeScale(name, f, StrCat(blocks.ToString(), " ", types));
  if (f.global_scale) parts.global_scale = Take(StrCat(name, ".weight_scale_2"), "[] F32");
  if (!status_.ok()) return;
  const FileTensor& scale = *parts.block_scale;
  const std::string per = f.grid() ? StrCat(f.block_rows, " x ", f.block_cols) : StrCat(f.block_cols);
  if (!HasShape(scale, blocks, StrCat(", one scale per ", per))) return;
  // Some writers store E8M0 as U8. Nothing else has this shape.
  const bool as_bytes = scale.dtype == DType::kU8 && f.scale == DType::kF8E8M0;
  parts.scale_dtype = as_bytes ? f.scale : scale.dtype;
  if (!scale.dtype_known || (parts.scale_dtype != f.scale && !(f.f32_scale && parts.scale_dtype == DType::kF32))) {
    return Fail(scale, StrCat("has type ", scale.dtype_name, ", expected ", types, " for the scales of ", f.family,
                              " weights"));
  }
  if (!f.global_scale) return;
  CheckGlobalScale(*parts.global_scale, count);
  if (const FileTensor* input = Find(StrCat(name, ".input_scale")); input != nullptr) CheckInputScale(*input, count);
}

// Null: this weight type is not supported.
const WeightFormatInfo* TensorBinder::FormatOf(std::string_view name, const FileTensor& codes) {
  for (const WeightFormatInfo& f : kWeightFormats) {
    if (!codes.dtype_known || codes.dtype != f.codes) continue;
    // U8 codes with a global scale are NVFP4. Without one, E8M0 scales per 32 can only mean MXFP4.
    const bool mxfp4 = f.format == WeightFormat::kNvfp4 && !Has(StrCat(name, ".weight_scale_2")) &&
                       Has(StrCat(name, ".scale"));
    return mxfp4 ? &InfoOf(WeightFormat::kMxfp4) : &f;
  }
  return nullptr;
}

void TensorBinder::CheckGlobalScale(const FileTensor& tensor, int64_t count) {
  const bool scalar = tensor.shape == Shape{} || tensor.shape == Shape{1};
  const bool per_matrix = count > 0 && tensor.shape == Shape{count};
  if (!scalar && !per_matrix) {
    return Fail(tensor, StrCat("has shape ", tensor.shape.ToString(), ", expected []",
                               count > 0 ? StrCat(" or [", count, "]") : ""));
  }
  if (!tensor.dtype_known || tensor.dtype != DType::kF32) {
    return Fail(tensor, StrCat("has type ", tensor.dtype_name, ", expected F32"));
  }
  for (int64_t i = 0; i < tensor.shape.num_elements(); ++i) {
    if (!std::isfinite(GlobalScale(tensor, i))) return Fail(tensor, "is NaN or infinite");
  }
}

// Static activation scales are not used (they overflow E4M3 block scales), but a broken one means a broken file. The
// scale of an expert without tokens in the calibration may be infinite.
void TensorBinder::CheckInputScale(const FileTensor& tensor, int64_t count) {
  bool infinite = false;
  if (tensor.dtype_known && tensor.dtype == DType::kF32) {
    for (int64_t i = 0; i < tensor.shape.num_elements(); ++i) infinite |= std::isinf(LoadF32(tensor.data + 4 * i));
  }
  if (!infinite) return CheckGlobalScale(tensor, count);
  report_.skipped_tensors.emplace_back(tensor.name);
}

float TensorBinder::GlobalScale(const FileTensor& tensor, int64_t index) const {
  return LoadF32(tensor.data + 4 * (tensor.shape.num_elements() > 1 ? index : 0));
}

void TensorBinder::FailOnType(const FileTensor& codes) {
  const bool packed = codes.dtype_name == "I32" || codes.dtype_name == "U32";
  Fail(
      Unsupported(StrCat("'", source_.FileOf(codes), "': tensor '", codes.name, "' has type ", codes.dtype_name,
                         "; accepted: F32, BF16, F8_E4M3, I8 (MXFP4), U8 (NVFP4)",
                         packed ? "; these are packed integers (MLX, GPTQ or AWQ): " : "", packed ? kUseAnother : "")));
}

TensorBinder::Parts TensorBinder::Resolve(std::string_view name, int64_t count, int64_t rows, int64_t cols) {
  Parts parts;
  const Shape plain = Stacked(count, rows, cols);
  parts.codes = Take(StrCat(name, ".weight"), plain.ToString());
  if (parts.codes == nullptr) return parts;
  const FileTensor& codes = *parts.codes;
  const WeightFormatInfo* f = FormatOf(name, codes);
  if (f == nullptr) {
    FailOnType(codes);
    return parts;
  }
  parts.format = f->format;
  if (f->packed() && (codes.dtype == DType::kI8 || codes.dtype == DType::kU8) && codes.shape == plain) {
    Fail(Unsupported(StrCat("'", source_.FileOf(codes), "': tensor '", codes.name,
                            "' holds integers of 8 bits (W8A8 or "
                            "W8A16), which dsv4 does not read; ",
                            kUseAnother)));
    return parts;
  }
  if (!HasShape(codes, f->packed() ? Stacked(count, rows, cols / 2) : plain,
                f->packed() ? ", two values per byte" : ""))
    return parts;
  if (f->quantised()) ResolveScales(name, parts, count, rows, cols);
  if (!status_.ok()) return parts;
  const std::string_view format = NameOf(parts.format);
  Account(codes, format, plain.num_elements());
  if (parts.block_scale != nullptr) {
    Account(*parts.block_scale, format, 0);
    scales_.push_back({parts.block_scale, parts.scale_dtype, f->grid()});
  }
  if (parts.global_scale != nullptr) Account(*parts.global_scale, format, 0);
  return parts;
}

QuantTensor TensorBinder::View(const Parts& parts, int64_t index, int64_t stack_rows, int64_t first_row, int64_t rows,
                               int64_t cols) const {
  QuantTensor view;
  if (!status_.ok()) return view;
  view.format = parts.format;
  view.rows = rows;
  view.cols = cols;
  view.codes = parts.codes->data + (index * stack_rows + first_row) * view.row_bytes();
  if (parts.block_scale == nullptr) return view;
  view.scale_dtype = parts.scale_dtype;
  const WeightFormatInfo& f = InfoOf(parts.format);
  const uint8_t* scales = parts.block_scale->data;
  if (f.grid()) {
    view.block_scale = scales + index * CeilDiv(stack_rows, f.block_rows) * FileScaleRowBytes(view);
    view.scale_row_offset = first_row;
  } else {
    view.block_scale = scales + (index * stack_rows + first_row) * FileScaleRowBytes(view);
  }
  if (parts.global_scale != nullptr) view.global_scale = GlobalScale(*parts.global_scale, index);
  return view;
}

QuantTensor TensorBinder::Matrix(std::string_view name, int64_t rows, int64_t cols) {
  return View(Resolve(name, 0, rows, cols), 0, rows, 0, rows, cols);
}

QuantTensor TensorBinder::PlainMatrix(std::string_view name, int64_t rows, int64_t cols) {
  const Shape shape{rows, cols};
  const FileTensor* tensor = Take(name, StrCat(shape.ToString(), " F32 or BF16"));
  if (tensor == nullptr || !HasShape(*tensor, shape)) return {};
  if (!tensor->dtype_known || (tensor->dtype != DType::kF32 && tensor->dtype != DType::kBf16)) {
    Fail(*tensor, StrCat("has type ", tensor->dtype_name, ", expected F32 or BF16"));
    return {};
  }
  Parts parts;
  parts.codes = tensor;
  parts.format = tensor->dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
  Account(*tensor, NameOf(parts.format), shape.num_elements());
  return View(parts, 0, rows, 0, rows, cols);
}

std::vector<QuantTensor> TensorBinder::Stack(std::string_view name, int64_t count, int64_t rows, int64_t cols,
                                             int64_t parts) {
  const Parts stack = Resolve(name, count, rows, cols);
  std::vector<QuantTensor> views;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t p = 0; p < parts; ++p) views.push_back(View(stack, i, rows, p * rows / parts, rows / parts, cols));
  }
  return views;
}

Tensor TensorBinder::Vector(std::string_view name, const Shape& shape) {
  const FileTensor* tensor = Take(name, StrCat(shape.ToString(), " F32 or BF16"));
  if (tensor == nullptr || !HasShape(*tensor, shape)) return {};
  const bool bf16 = tensor->dtype == DType::kBf16;
  if (!tensor->dtype_known || (tensor->dtype != DType::kF32 && !bf16)) {
    Fail(*tensor, StrCat("has type ", tensor->dtype_name, ", expected F32 or BF16"));
    return {};
  }
  Account(*tensor, tensor->dtype_name, shape.num_elements());
  const int64_t n = shape.num_elements();
  source_.WillRead(*tensor);
  auto* values = static_cast<float*>(storage_->Allocate(n * 4));
  report_.widened_bytes += n * 4;
  for (int64_t i = 0; i < n; ++i) {
    values[i] = bf16 ? Bf16ToF32(tensor->data + 2 * i) : LoadF32(tensor->data + 4 * i);
    if (!std::isfinite(values[i])) {
      Fail(*tensor, StrCat("holds NaN or infinity (element ", i, ")"));
      return {};
    }
  }
  return {values, DType::kF32, shape};
}

Tensor TensorBinder::Ids(std::string_view name, int64_t rows, int64_t cols, int64_t limit) {
  const Shape shape{rows, cols};
  const FileTensor* tensor = Take(name, StrCat(shape.ToString(), " I64"));
  if (tensor == nullptr || !HasShape(*tensor, shape)) return {};
  const bool wide = tensor->dtype == DType::kI64;
  if (!tensor->dtype_known || (!wide && tensor->dtype != DType::kI32)) {
    Fail(*tensor, StrCat("has type ", tensor->dtype_name, ", expected I64 or I32"));
    return {};
  }
  const int64_t n = shape.num_elements();
  Account(*tensor, tensor->dtype_name, n);
  source_.WillRead(*tensor);
  auto* ids = static_cast<int32_t*>(storage_->Allocate(n * 4));
  report_.widened_bytes += n * 4;
  for (int64_t i = 0; i < n; ++i) {
    int64_t id = 0;
    int32_t narrow = 0;
    if (wide) {
      std::memcpy(&id, tensor->data + 8 * i, 8);
    } else {
      std::memcpy(&narrow, tensor->data + 4 * i, 4);
      id = narrow;
    }
    if (id < 0 || id >= limit) {
      Fail(*tensor, StrCat("names expert ", id, " in row ", i / cols, "; there are ", limit));
      return {};
    }
    ids[i] = static_cast<int32_t>(id);
  }
  return {ids, DType::kI32, shape};
}

void TensorBinder::ExpectExperts(std::string_view name, std::string_view of, int64_t experts) {
  const int32_t id = names_.Find(StrCat(name, ".weight"));
  if (id < 0) return;
  const FileTensor& router = source_.tensors()[static_cast<size_t>(id)];
  if (router.shape.rank() != 2 || router.shape[0] == experts) return;
  Fail(router, StrCat("has shape ", router.shape.ToString(), ": ", of, " has ", router.shape[0],
                      " experts, and n_routed_experts of config.json is ", experts,
                      "; every layer must have that number, so take config.json and weights of one checkpoint that was "
                      "not pruned layer by layer"));
}

void TensorBinder::ForbidBoth(std::string_view name, std::string_view other) {
  const FileTensor* tensor = Find(StrCat(name, ".weight"));
  if (tensor == nullptr) return;
  const FileTensor& stack = *Find(StrCat(other, ".weight"));
  Fail(*tensor, StrCat("is present twice: '", stack.name, "' in '", source_.FileOf(stack), "' has this expert, too"));
}

void TensorBinder::CheckScales(const Scales& scales) {
  source_.WillRead(*scales.tensor);
  const uint8_t* p = scales.tensor->data;
  const int64_t n = scales.tensor->num_bytes;
  bool bad = false;
  if (scales.dtype == DType::kF8E8M0) {
    bad = std::memchr(p, 0xff, static_cast<size_t>(n)) != nullptr;
  } else if (scales.dtype == DType::kF8E4M3) {
    uint8_t found = 0;
    for (int64_t i = 0; i < n; ++i) found |= static_cast<uint8_t>((p[i] & 0x7f) == 0x7f);
    bad = found != 0;
  } else {
    for (int64_t i = 0; i < n; i += 4) bad |= !std::isfinite(LoadF32(p + i));
  }
  if (bad) Fail(*scales.tensor, "holds NaN or infinite block scales");
}

// A scale of a matrix that needs none, or a scale of activations.
bool TensorBinder::IsOrphanScale(std::string_view name) const {
  const std::string_view matrix = MatrixOfScale(name);
  const int32_t id = matrix.empty() ? -1 : names_.Find(StrCat(matrix, ".weight"));
  if (id < 0 || !used_[static_cast<size_t>(id)]) return false;
  const FileTensor& codes = source_.tensors()[static_cast<size_t>(id)];
  return codes.dtype == DType::kBf16 || codes.dtype == DType::kF32 || name.ends_with(".input_scale");
}

Status TensorBinder::Finish(bool with_drafts, BindReport& report) {
  for (size_t i = 0; status_.ok() && i < used_.size(); ++i) {
    const FileTensor& tensor = source_.tensors()[i];
    if (used_[i]) continue;
    if (with_drafts ? IsCopyInDraft(official_[i]) : IsDraftName(official_[i])) {
      report_.unused_tensors.emplace_back(tensor.name);
    } else if (IsUnusedValue(official_[i]) || IsOrphanScale(official_[i])) {
      report_.skipped_tensors.emplace_back(tensor.name);
    } else {
      Fail(tensor,
           StrCat("of shape ", tensor.shape.ToString(), " is unknown: no part of the model in config.json uses it"));
    }
  }

  int64_t fp4_bytes = 0;
  for (const Scales& scales : scales_) fp4_bytes += scales.fp8_grid ? 0 : scales.tensor->num_bytes;
  const int64_t stride = std::max<int64_t>(CeilDiv(fp4_bytes, options_.scale_check_bytes), 1);
  int64_t fp4_seen = 0;
  for (const Scales& scales : scales_) {
    if (!status_.ok()) break;
    if (scales.fp8_grid || fp4_seen++ % stride == 0) CheckScales(scales);
  }
  source_.ExpectScattered(false);
  report = std::move(report_);
  return status_;
}

}  // namespace dsv4::deepseek_v4
