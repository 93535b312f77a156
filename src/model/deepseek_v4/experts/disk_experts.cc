#include "model/deepseek_v4/experts/disk_experts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/read_ahead.h"
#include "base/stopwatch.h"
#include "model/deepseek_v4/load/weight_arena.h"
#include "model/deepseek_v4/schema/expert_matrices.h"
#include "ops/pack_weight/pack_weight.h"

namespace dsv4::deepseek_v4 {

namespace {

constexpr int64_t kPieceBytes = int64_t{256} << 10;  // of a copy, about
constexpr int64_t kPiecesOfThread = 4;               // waking one for less takes longer
constexpr int64_t kRunBytes = 4096;                  // of what lies in one piece: it is cut into so many at a time

// Gate, up, down: which part of it a rank has.
constexpr Slice kExpertCuts[] = {Slice::kRows, Slice::kRows, Slice::kColumns};

int64_t LargestExpert(std::span<const int64_t> expert_bytes) {
  return *std::max_element(expert_bytes.begin(), expert_bytes.end());
}

// Rows of a format are longer than its tiles at most by what tight tiles spare of the scales.
int64_t MostRowBytes(std::span<const int64_t> expert_bytes) {
  return AlignedBytes(LargestExpert(expert_bytes) * 9 / 8) + AlignedBytes(1) * 6;
}

int64_t NumPlaces(const ExpertPlacement& placement) {
  const std::vector<int64_t> counts = placement.DiskByLayer();
  return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
}

int64_t PlaceBytesOf(std::span<const int64_t> expert_bytes) { return AlignedBytes(LargestExpert(expert_bytes)); }

// Of the scales' rows in the file that the matrix has, the first of which is the first of its grid.
int64_t ScaleBytesFrom(const QuantTensor& m) {
  const WeightFormatInfo& f = InfoOf(m.format);
  return f.quantised() ? CeilDiv(m.scale_row_offset + m.rows, f.block_rows) * FileScaleRowBytes(m) : 0;
}

}  // namespace

class DiskExperts::Layer : public ExpertSupply {
 public:
  Layer(DiskExperts& disk, int64_t l, std::vector<ExpertWeights>& experts, const std::vector<ExpertWeights>& at_home)
      : number(l), named(experts), homes(at_home), place_of(at_home.size(), kInPlace), disk_(disk) {}

  void Bring(const ExecContext& ctx, const Tensor& chosen) override {
    std::vector<int32_t>& ids = disk_.chosen_;
    ids.resize(static_cast<size_t>(chosen.num_elements()));
    disk_.device_.Download(ids.data(), chosen.data, chosen.num_bytes());
    if (disk_.device_.status().ok()) disk_.BringChosen(ctx, *this, ids);
  }

  static constexpr int32_t kInPlace = -2, kInFile = -1;  // kInPlace: never on the disk

  const int64_t number;
  std::vector<ExpertWeights>& named;       // as the host names them
  const std::vector<ExpertWeights> homes;  // whole, or a rank's (ExpertHomes)
  std::vector<int32_t> place_of;           // of places_, or one of the above

 private:
  DiskExperts& disk_;
};

int64_t DiskExperts::Bytes(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes) {
  const int64_t places = NumPlaces(placement);
  return places == 0 ? 0 : places * PlaceBytesOf(expert_bytes) + MostRowBytes(expert_bytes);
}

int64_t DiskExperts::StagingBytes(const ExpertPlacement& placement, std::span<const int64_t> expert_bytes) {
  return NumPlaces(placement) == 0 ? 0 : static_cast<int64_t>(kStages) * MostRowBytes(expert_bytes);
}

std::unique_ptr<DiskExperts> DiskExperts::Open(Device& device, Weights& weights, const ExpertPlacement& placement,
                                               std::span<const int64_t> expert_bytes, const ExpertHomes& homes,
                                               Name name) {
  std::unique_ptr<DiskExperts> d(new DiskExperts(device, homes, std::move(name)));
  d->raw_bytes_ = MostRowBytes(expert_bytes);
  d->place_bytes_ = PlaceBytesOf(expert_bytes);
  if (!d->memory_.Allocate(device, Bytes(placement, expert_bytes)) ||
      !d->staging_.Allocate(device, StagingBytes(placement, expert_bytes)))
    return nullptr;
  d->places_.resize(static_cast<size_t>(NumPlaces(placement)));
  for (size_t i = 0; i < d->places_.size(); ++i)
    d->places_[i].at = d->memory_.data() + static_cast<int64_t>(i) * PlaceBytesOf(expert_bytes);
  const std::vector<int64_t> counts = placement.DiskByLayer();
  for (size_t l = 0; l < counts.size(); ++l) {
    d->layers_.push_back(nullptr);
    if (counts[l] == 0) continue;
    std::vector<ExpertWeights>& named = weights.layers[l].moe.experts;
    const auto number = static_cast<int64_t>(l);
    d->layers_.back() = std::make_unique<Layer>(*d, number, named,
                                                homes.files != nullptr ? homes.files->layers[l].moe.experts : named);
    for (size_t e = 0; e < named.size(); ++e) {
      if (!placement.OnDisk(number, static_cast<int64_t>(e))) continue;
      d->layers_.back()->place_of[e] = Layer::kInFile;
      for (const auto m : kExpertMatrices) (named[e].*m).codes = d->memory_.data();
    }
  }
  return d;
}

DiskExperts::DiskExperts(Device& device, const ExpertHomes& homes, Name name)
    : device_(device), homes_(homes), name_(std::move(name)) {}
DiskExperts::~DiskExperts() { (void)device_.Synchronize(); }  // copies from staging_ are under way

ExpertSupply* DiskExperts::Of(int64_t layer) {
  const auto l = static_cast<size_t>(layer);
  return l < layers_.size() ? layers_[l].get() : nullptr;
}

void DiskExperts::Bring(int64_t layer, int64_t expert) {
  if (Of(layer) == nullptr) return;
  const auto id = static_cast<int32_t>(expert);
  const uint64_t found = use_.found;  // nobody has chosen it
  BringChosen(device_.Context(nullptr, false), *layers_[static_cast<size_t>(layer)], {&id, 1});
  use_.found = found;
}

void DiskExperts::BringChosen(const ExecContext& ctx, Layer& layer, std::span<const int32_t> chosen) {
  ++pass_;
  missing_.clear();
  for (const int32_t id : chosen) {
    const auto e = static_cast<size_t>(id);
    if (id < 0 || e >= layer.place_of.size() || layer.place_of[e] == Layer::kInPlace) continue;
    if (layer.place_of[e] == Layer::kInFile) {
      Place& place = LeastUsed();
      if (place.expert >= 0)
        layers_[static_cast<size_t>(place.layer)]->place_of[static_cast<size_t>(place.expert)] = Layer::kInFile;
      place.layer = layer.number, place.expert = id, place.since = pass_;
      layer.place_of[e] = static_cast<int32_t>(&place - places_.data());
      missing_.push_back(id);
    }
    Place& place = places_[static_cast<size_t>(layer.place_of[e])];
    use_.found += place.since < pass_ ? 1 : 0;
    place.used = pass_;
  }
  if (!missing_.empty()) Read(ctx, layer, missing_);
}

DiskExperts::Place& DiskExperts::LeastUsed() {
  Place& least = *std::min_element(places_.begin(), places_.end(),
                                   [](const Place& a, const Place& b) { return a.used < b.used; });
  DSV4_CHECK(least.used < pass_, "there are places for all experts of a layer");
  return least;
}

void DiskExperts::Read(const ExecContext& ctx, Layer& layer, std::span<const int64_t> experts) {
  const Stopwatch reading;
  for (const int64_t e : experts) {
    for (const auto m : kExpertMatrices) {
      const QuantTensor& home = layer.homes[static_cast<size_t>(e)].*m;
      ReadAhead(home.codes, home.rows * home.row_bytes());
      ReadAhead(home.block_scale, ScaleBytesFrom(home));
    }
  }
  for (const int64_t e : experts)
    Fill(ctx, layer, e, places_[static_cast<size_t>(layer.place_of[static_cast<size_t>(e)])]);
  use_.reads += static_cast<int64_t>(experts.size());
  use_.seconds += reading.Seconds();
}

void DiskExperts::Fill(const ExecContext& ctx, Layer& layer, int64_t expert, Place& place) {
  (void)device_.Wait(marks_[stage_]);  // what was staged there has been copied
  uint8_t* const begin = staging_.data() + static_cast<int64_t>(stage_) * raw_bytes_;
  uint8_t* to = begin;
  ExpertWeights staged;
  pieces_.clear();
  for (size_t i = 0; i < std::size(kExpertMatrices); ++i) {
    const auto m = kExpertMatrices[i];
    staged.*m = Stage(layer.homes[static_cast<size_t>(expert)].*m, kExpertCuts[i], &to);
  }
  DSV4_CHECK(to - begin <= raw_bytes_, to - begin, " bytes of an expert's rows");
  CopyPieces(ctx.pool);
  use_.bytes += static_cast<double>(to - begin);
  ExpertWeights& now = layer.named[static_cast<size_t>(expert)];
  const bool packs = now.gate.layout == WeightLayout::kTiles;
  uint8_t* const rows = packs ? memory_.data() + memory_.bytes() - raw_bytes_ : place.at;
  device_.Upload(rows, begin, to - begin);
  marks_[stage_] = device_.Mark();
  stage_ = (stage_ + 1) % kStages;
  uint8_t* tiles = place.at;
  for (const auto m : kExpertMatrices) {
    QuantTensor w = staged.*m;
    w.codes = rows + (w.codes - begin);
    if (w.block_scale != nullptr) w.block_scale = rows + (w.block_scale - begin);
    if (!packs) {
      now.*m = w;
      continue;
    }
    const int64_t scale_bytes = PackedScaleBytes(w);
    PackWeightArgs pack{.w = w, .codes = tiles};
    tiles += AlignedBytes(PackedCodeBytes(w));
    if (scale_bytes > 0) pack.block_scale = std::exchange(tiles, tiles + AlignedBytes(scale_bytes));
    PackWeight(ctx, pack);
    now.*m = PackedView(pack);
  }
  DSV4_CHECK((packs ? tiles - place.at : to - begin) <= place_bytes_, "an expert fits a place");
  name_(layer.number, expert, now);
}

QuantTensor DiskExperts::Stage(const QuantTensor& rows, Slice cut, uint8_t** to) {
  const bool columns = cut == Slice::kColumns && homes_.sharding.count > 1;
  const auto add = [&](const uint8_t* from, uint8_t* dst, int64_t n, int64_t stride, int64_t bytes) {
    const int64_t at_once = std::max<int64_t>(1, kPieceBytes / bytes);
    for (int64_t r = 0; r < n; r += at_once)
      pieces_.push_back({from + r * stride, dst + r * bytes, std::min(at_once, n - r), stride, bytes});
  };
  uint8_t* const codes = *to;
  if (columns) {
    uint8_t* const scales = codes + AlignedBytes(CodeSliceBytes(rows, homes_.sharding.count));
    *to = scales + AlignedBytes(ScaleSliceBytes(rows, homes_.sharding.count));
    std::vector<ColumnCopy> copies;
    const QuantTensor slice = ColumnSlice(rows, homes_.sharding, codes, scales, &copies);
    for (const ColumnCopy& c : copies) add(c.from, c.to, c.rows, c.from_stride, c.bytes);
    return slice;
  }
  QuantTensor slice = RowSlice(rows, homes_.sharding);
  const auto stage = [&](const uint8_t* from, int64_t bytes) {
    uint8_t* const at = std::exchange(*to, *to + AlignedBytes(bytes));
    add(from, at, bytes / kRunBytes, kRunBytes, kRunBytes);
    if (const int64_t left = bytes % kRunBytes; left > 0) add(from + bytes - left, at + bytes - left, 1, left, left);
    return at;
  };
  slice.codes = stage(slice.codes, slice.rows * slice.row_bytes());
  if (const int64_t bytes = ScaleBytesFrom(slice); bytes > 0) slice.block_scale = stage(slice.block_scale, bytes);
  return slice;
}

void DiskExperts::CopyPieces(ThreadPool* pool) {
  ParallelFor(pool, static_cast<int64_t>(pieces_.size()), kPiecesOfThread, [this](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& p = pieces_[static_cast<size_t>(i)];
      for (int64_t r = 0; r < p.rows; ++r)
        std::memcpy(p.to + r * p.bytes, p.from + r * p.stride, static_cast<size_t>(p.bytes));
    }
  });
}

}  // namespace dsv4::deepseek_v4
