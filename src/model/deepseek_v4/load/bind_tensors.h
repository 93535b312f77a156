// TensorBinder binds one tensor at a time, by official name. bind.cc chooses the tensors; this class checks each kind.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/name_table.h"
#include "model/deepseek_v4/load/bind.h"

namespace dsv4::deepseek_v4 {

// Owns the copies that binding makes, and keeps the mapped files.
struct WeightStorage {
  struct FreeDeleter {
    void operator()(void* p) const;
  };
  std::shared_ptr<const TensorSource> source;
  std::vector<std::unique_ptr<void, FreeDeleter>> copies;

  void* Allocate(int64_t num_bytes);  // 64-byte aligned; throws std::bad_alloc
};

// After the first error every call returns an empty tensor; status() returns the error.
class TensorBinder {
 public:
  TensorBinder(std::shared_ptr<const TensorSource> source, const BindOptions& options);

  const Status& status() const { return status_; }
  // The tensor whose absence is the error; empty: there is none, or another error.
  const std::string& missing() const { return missing_; }
  // Adds to the error which unknown tensor the missing one may be.
  void NameNearest(const Config& config);
  bool Has(std::string_view name) const { return names_.Find(name) >= 0; }

  // A matrix [rows, cols] in any weight format, `name` without `.weight`.
  QuantTensor Matrix(std::string_view name, int64_t rows, int64_t cols);

  // A matrix [rows, cols] in F32 or BF16; `name` is the whole name.
  QuantTensor PlainMatrix(std::string_view name, int64_t rows, int64_t cols);

  // `count` matrices [rows, cols] in one tensor [count, rows, cols]. Returns each as `parts` equal runs of rows, matrix
  // by matrix.
  std::vector<QuantTensor> Stack(std::string_view name, int64_t count, int64_t rows, int64_t cols, int64_t parts);

  // F32 or BF16 [shape] as owned f32; all values must be finite.
  Tensor Vector(std::string_view name, const Shape& shape);

  // I64 or I32 [rows, cols] as owned i32, each in [0, limit).
  Tensor Ids(std::string_view name, int64_t rows, int64_t cols, int64_t limit);

  // The router `name` of `of` ("layer 3") must have a row for each of `experts`.
  void ExpectExperts(std::string_view name, std::string_view of, int64_t experts);

  // The matrix `name` (without `.weight`) must not be present: the stack `other` has it.
  void ForbidBoth(std::string_view name, std::string_view other);

  // The checks that need all tensors bound: unknown tensors, then block scales. Fills the report. Tensors of a draft
  // module may remain unless it was bound, and values that the model does not use.
  Status Finish(bool with_drafts, BindReport& report);

  std::shared_ptr<const void> storage() const { return storage_; }

 private:
  struct Scales {  // the block scales of one tensor
    const FileTensor* tensor;
    DType dtype;  // the real type; U8 in the file may mean E8M0
    bool fp8_grid;
  };
  struct Parts {  // a matrix or a stack of matrices with its siblings
    WeightFormat format = WeightFormat::kF32;
    const FileTensor* codes = nullptr;
    const FileTensor* block_scale = nullptr;
    DType scale_dtype = DType::kF32;
    const FileTensor* global_scale = nullptr;
  };

  void Fail(Status status);
  void Fail(const FileTensor& tensor, std::string_view what);
  const FileTensor* Find(std::string_view name);
  const FileTensor* Take(std::string_view name, std::string_view expected);
  bool HasShape(const FileTensor& tensor, const Shape& expected, std::string_view why = {});
  void FailOnType(const FileTensor& codes);
  void Account(const FileTensor& tensor, std::string_view format, int64_t elements);

  // `count`: 0 for a separate matrix, otherwise the length of the stack.
  Parts Resolve(std::string_view name, int64_t count, int64_t rows, int64_t cols);
  void ResolveScales(std::string_view name, Parts& parts, int64_t count, int64_t rows, int64_t cols);
  const WeightFormatInfo* FormatOf(std::string_view name, const FileTensor& codes);
  const FileTensor* TakeScale(std::string_view name, const WeightFormatInfo& format, std::string_view expected);
  void CheckGlobalScale(const FileTensor& tensor, int64_t count);
  void CheckInputScale(const FileTensor& tensor, int64_t count);
  void RefuseForeign();
  bool IsOrphanScale(std::string_view name) const;
  float GlobalScale(const FileTensor& tensor, int64_t index) const;
  QuantTensor View(const Parts& parts, int64_t index, int64_t stack_rows, int64_t first_row, int64_t rows,
                   int64_t cols) const;
  void CheckScales(const Scales& scales);

  std::shared_ptr<WeightStorage> storage_;
  const TensorSource& source_;
  BindOptions options_;
  Status status_;
  std::string missing_;
  std::deque<std::string> rewritten_;       // official names that differ from the file's
  std::vector<std::string_view> official_;  // by tensor number
  std::vector<bool> used_;                  // by tensor number
  NameTable names_;                         // official name -> tensor number
  std::vector<Scales> scales_;
  BindReport report_;
};

}  // namespace dsv4::deepseek_v4
