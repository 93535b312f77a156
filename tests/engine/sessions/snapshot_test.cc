// KV snapshots: continuing from one gives the bits of the original session. The same for saved snapshots; damaged or
// foreign files are refused.

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "dsv4/snapshot.h"
#include "io/test_files.h"
#include "support/allocations.h"
#include "support/sessions.h"

namespace dsv4::test {
namespace {

class Snapshot : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string dir = FixtureDir("flash-nvfp4");
    if (dir.empty()) GTEST_SKIP() << "fixture flash-nvfp4 is not on this machine";
    options_.model_dir = dir;
    options_.num_threads = 2;
    engine_ = LoadOrFail(options_);
    ASSERT_NE(engine_, nullptr);
    vocab_ = static_cast<size_t>(engine_->info().vocab_size);
  }

  std::unique_ptr<Session> SessionOf(std::span<const TokenId> tokens) {
    auto session = std::move(engine_->NewSession()).value();
    EXPECT_TRUE(session->Append(tokens, LogitRows::kNone, nullptr).ok());
    return session;
  }
  std::shared_ptr<const KvSnapshot> SnapshotOf(std::span<const TokenId> tokens) {
    return std::move(SessionOf(tokens)->Snapshot()).value();
  }
  // All rows of a session that continues from `snapshot` with `tokens`.
  std::vector<float> GoOn(Engine& engine, const KvSnapshot& snapshot, std::span<const TokenId> tokens) {
    auto session = engine.NewSession(snapshot);
    EXPECT_TRUE(session.ok()) << session.status().message();
    EXPECT_EQ((*session)->tokens(), snapshot.tokens());
    std::vector<float> logits;
    EXPECT_TRUE((*session)->Append(tokens, LogitRows::kAll, &logits).ok());
    return logits;
  }
  std::vector<float> RowsFrom(const std::vector<float>& all, size_t begin, size_t count) {
    return {all.begin() + static_cast<ptrdiff_t>(begin * vocab_),
            all.begin() + static_cast<ptrdiff_t>((begin + count) * vocab_)};
  }

  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
  size_t vocab_ = 0;
};

TEST_F(Snapshot, EveryEdgeGoesOnWithTheSameBits) {
  const std::vector<TokenId> ids = SomeTokens(530, 3, static_cast<int64_t>(vocab_));
  const std::vector<float> all = AllLogits(*engine_, ids);
  // Around the first compressed rows (4, 128), the window (128), pages (256) and their multiples.
  auto session = std::move(engine_->NewSession()).value();
  for (const size_t cut : {1,   2,   3,   4,   5,   7,   8,   9,   63,  127, 128, 129, 131, 132,
                           133, 200, 255, 256, 257, 259, 260, 261, 384, 385, 511, 512, 513}) {
    // The session continues after each of its snapshots.
    const size_t done = session->tokens().size();
    std::vector<float> rows;
    ASSERT_TRUE(session->Append(std::span(ids).subspan(done, cut - done), LogitRows::kAll, &rows).ok());
    EXPECT_EQ(rows, RowsFrom(all, done, cut - done)) << "up to " << cut;
    const auto snapshot = std::move(session->Snapshot()).value();
    EXPECT_EQ(snapshot->tokens(), std::vector<TokenId>(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(cut)));
    const size_t count = cut == 3 || cut == 129 || cut == 255 ? 140 : 9;
    EXPECT_EQ(GoOn(*engine_, *snapshot, std::span(ids).subspan(cut, count)), RowsFrom(all, cut, count))
        << "cut at " << cut;
  }
}

TEST_F(Snapshot, BranchesOfOneSnapshotDoNotMeet) {
  const auto v = static_cast<int64_t>(vocab_);
  const std::vector<TokenId> head = SomeTokens(253, 1, v);
  const auto snapshot = SnapshotOf(head);
  constexpr size_t kBranches = 2, kSteps = 46;
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<TokenId>> tails;
  std::vector<std::vector<float>> rows(kBranches);
  for (size_t b = 0; b < kBranches; ++b) {
    sessions.push_back(std::move(engine_->NewSession(*snapshot)).value());
    tails.push_back(SomeTokens(kSteps, 10 + b, v));
  }
  for (size_t at = 0; at < kSteps; at += 23) {  // alternating, in one batch
    std::vector<StepItem> items;
    std::vector<std::vector<float>> logits(kBranches);
    for (size_t b = 0; b < kBranches; ++b) {
      items.push_back({.session = sessions[b].get(),
                       .tokens = std::span(tails[b]).subspan(at, 23),
                       .rows = LogitRows::kAll,
                       .logits = &logits[b]});
    }
    ASSERT_TRUE(engine_->Step(items).ok());
    for (size_t b = 0; b < kBranches; ++b) rows[b].insert(rows[b].end(), logits[b].begin(), logits[b].end());
  }
  for (size_t b = 0; b < kBranches; ++b) {
    std::vector<TokenId> whole = head;
    whole.insert(whole.end(), tails[b].begin(), tails[b].end());
    EXPECT_EQ(rows[b], RowsFrom(AllLogits(*engine_, whole), head.size(), kSteps)) << "branch " << b;
  }
  // A chain: a snapshot of a session from a snapshot.
  const auto deeper = std::move(sessions[1]->Snapshot()).value();
  const std::vector<TokenId> more = SomeTokens(9, 99, v);
  std::vector<TokenId> whole = head;
  whole.insert(whole.end(), tails[1].begin(), tails[1].end());
  whole.insert(whole.end(), more.begin(), more.end());
  EXPECT_EQ(GoOn(*engine_, *deeper, more),
            RowsFrom(AllLogits(*engine_, whole), whole.size() - more.size(), more.size()));
}

TEST_F(Snapshot, SharedPagesCountOnce) {
  const ModelInfo& info = engine_->info();
  const auto page = static_cast<int64_t>(info.kv_bytes_per_token * 256);
  EXPECT_GT(page, 0);
  EXPECT_EQ(engine_->kv_bytes(), 0);
  auto session = SessionOf(SomeTokens(1000, 1, info.vocab_size));
  EXPECT_EQ(session->memory_bytes(), info.kv_fixed_bytes + 4 * page);
  EXPECT_EQ(session->own_bytes(), session->memory_bytes());
  EXPECT_EQ(engine_->kv_bytes(), session->memory_bytes());
  auto snapshot = std::move(session->Snapshot()).value();
  EXPECT_EQ(snapshot->memory_bytes(), session->memory_bytes());
  EXPECT_EQ(snapshot->own_bytes(), info.kv_fixed_bytes + page);
  EXPECT_EQ(session->own_bytes(), info.kv_fixed_bytes + page);
  EXPECT_EQ(engine_->kv_bytes(), 2 * info.kv_fixed_bytes + 5 * page);
  auto second = std::move(engine_->NewSession(*snapshot)).value();
  EXPECT_EQ(engine_->kv_bytes(), 3 * info.kv_fixed_bytes + 6 * page);
  session.reset();
  EXPECT_EQ(engine_->kv_bytes(), 2 * info.kv_fixed_bytes + 5 * page);
  second->Reset();
  EXPECT_EQ(snapshot->own_bytes(), snapshot->memory_bytes());
  EXPECT_EQ(engine_->kv_bytes(), snapshot->memory_bytes() + second->memory_bytes());
  second.reset();
  snapshot.reset();
  EXPECT_EQ(engine_->kv_bytes(), 0);
  EXPECT_GT(engine_->free_bytes(), 0);
}

TEST_F(Snapshot, WhatCannotBeIsRefused) {
  auto session = std::move(engine_->NewSession()).value();
  EXPECT_EQ(session->Snapshot().status().code(), StatusCode::kInvalidArgument);
  const auto snapshot = SnapshotOf(SomeTokens(10, 1, 100));
  const auto other = LoadOrFail(options_);
  EXPECT_EQ(other->NewSession(*snapshot).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(snapshot->Save("/does/not/exist/a").code(), StatusCode::kNotFound);
  EXPECT_EQ(engine_->LoadSnapshot("/does/not/exist/a").status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(engine_->LoadSnapshot("/tmp").ok());
}

TEST_F(Snapshot, ASyntheticModelKnowsItsKvSizes) {
  EngineOptions options;
  options.synthetic.shape = "nano";
  options.num_threads = 1;
  auto synthetic = LoadOrFail(options);
  ASSERT_NE(synthetic, nullptr);
  const ModelInfo& info = synthetic->info();
  auto session = std::move(synthetic->NewSession()).value();
  EXPECT_EQ(session->memory_bytes(), info.kv_fixed_bytes);
  const std::vector<TokenId> ids(512, 3);
  ASSERT_TRUE(session->Append(ids, LogitRows::kNone, nullptr).ok());
  EXPECT_EQ(session->memory_bytes(), info.kv_fixed_bytes + static_cast<int64_t>(512 * info.kv_bytes_per_token));
}

class SnapshotFile : public Snapshot {
 protected:
  void SetUp() override {
    Snapshot::SetUp();
    if (IsSkipped()) return;
    ids_ = SomeTokens(280, 5, static_cast<int64_t>(vocab_));
    snapshot_ = SnapshotOf(std::span(ids_).first(kCut));
    ASSERT_TRUE(snapshot_->Save(path_, "a note").ok());
    std::ifstream file(path_, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }
  void Write(const std::string& bytes) { std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes; }
  // The file must be refused by one line that names it.
  void ExpectRefused(Engine& engine, StatusCode code, const std::string& what) {
    const Status status = engine.LoadSnapshot(path_).status();
    EXPECT_EQ(status.code(), code) << what << ": " << status.message();
    EXPECT_NE(status.message().find(path_), std::string::npos) << what << ": " << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << what;
  }

  static constexpr size_t kCut = 259;
  const dsv4::test::TempDir folder_;
  const std::string path_ = folder_ / "a.dsv4kv";
  std::string bytes_;
  std::vector<TokenId> ids_;
  std::shared_ptr<const KvSnapshot> snapshot_;
};

TEST_F(SnapshotFile, ComesBackWithTheSameBits) {
  const std::vector<float> expected = RowsFrom(AllLogits(*engine_, ids_), kCut, ids_.size() - kCut);
  const std::span<const TokenId> tail = std::span(ids_).subspan(kCut);
  const auto info = engine_->ReadSnapshotInfo(path_);
  ASSERT_TRUE(info.ok()) << info.status().message();
  EXPECT_EQ(info->tokens, snapshot_->tokens());
  EXPECT_EQ(info->note, "a note");
  EXPECT_EQ(info->file_bytes, static_cast<int64_t>(bytes_.size()));
  // In another engine of the same kind, as after a restart; the snapshot was saved after its engine was destroyed.
  engine_.reset();
  ASSERT_TRUE(snapshot_->Save(folder_ / "b.dsv4kv").ok());
  snapshot_.reset();
  engine_ = LoadOrFail(options_);
  for (const std::string& path : {path_, folder_ / "b.dsv4kv"}) {
    const auto loaded = engine_->LoadSnapshot(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(GoOn(*engine_, **loaded, tail), expected);
  }
  EXPECT_EQ(engine_->kv_bytes(), 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 2);  // no temporary files
}

TEST_F(SnapshotFile, CutOffFilesAreRefused) {
  for (size_t size :
       {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{79}, size_t{80}, size_t{100}, size_t{80 + 4 * kCut},
        bytes_.size() / 2, bytes_.size() - 5, bytes_.size() - 4, bytes_.size() - 1}) {
    Write(bytes_.substr(0, size));
    ExpectRefused(*engine_, StatusCode::kDataLoss, "cut off at " + std::to_string(size));
  }
  Write(bytes_ + '\0');
  ExpectRefused(*engine_, StatusCode::kDataLoss, "one byte more");
  EXPECT_EQ(engine_->kv_bytes(), snapshot_->memory_bytes());
}

TEST_F(SnapshotFile, APipeOrALinkIsRefused) {
  std::filesystem::rename(path_, folder_ / "elsewhere");
  std::filesystem::create_symlink(folder_ / "elsewhere", path_);
  ExpectRefused(*engine_, StatusCode::kInvalidArgument, "a link");
  EXPECT_EQ(engine_->ReadSnapshotInfo(path_).status().code(), StatusCode::kInvalidArgument);
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  ExpectRefused(*engine_, StatusCode::kInvalidArgument, "a pipe");
}

// A file with holes takes no disk, and its head can announce a gigabyte of tokens. Only their checksum is computed.
TEST_F(SnapshotFile, AHeadThatAnnouncesMuchTakesNoMemory) {
  constexpr int64_t kMany = int64_t{1} << 25;
  std::string head = bytes_.substr(0, 80);
  int64_t sizes[3];  // tokens, fingerprint, note
  std::memcpy(sizes, head.data() + 16, sizeof(sizes));
  const std::string fingerprint = bytes_.substr(80, static_cast<size_t>(sizes[1]));
  sizes[0] = kMany;
  std::memcpy(head.data() + 16, sizes, sizeof(sizes));
  const int64_t end = 80 + 4 * kMany + sizes[1] + sizes[2];
  for (const bool right : {false, true}) {
    Write(head + fingerprint);
    std::filesystem::resize_file(path_, static_cast<uintmax_t>(end + 4));
    if (right) {
      uLong sum = crc32(0, reinterpret_cast<const Bytef*>((head + fingerprint).data()),
                        static_cast<uInt>(80 + sizes[1]));
      const std::string zeros(1 << 20, '\0');
      for (int64_t left = end - 80 - sizes[1]; left > 0; left -= 1 << 20)
        sum = crc32(sum, reinterpret_cast<const Bytef*>(zeros.data()),
                    static_cast<uInt>(std::min<int64_t>(left, 1 << 20)));
      std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
      file.seekp(end);
      const auto low = static_cast<uint32_t>(sum);
      file.write(reinterpret_cast<const char*>(&low), sizeof(low));
    }
    const int64_t before = num_allocated_bytes;
    ExpectRefused(*engine_, StatusCode::kDataLoss, right ? "many tokens" : "many tokens, a wrong checksum");
    EXPECT_LT(num_allocated_bytes, before + (1 << 20));
  }
}

TEST_F(SnapshotFile, EveryFlippedBitIsNoticed) {
  const size_t step = bytes_.size() / 300;
  for (size_t at = 0; at < bytes_.size(); at += at < 78 ? 1 : step) {
    if (at >= 8 && at < 12) continue;  // the version: below
    std::string bytes = bytes_;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
    Write(bytes);
    ExpectRefused(*engine_, StatusCode::kDataLoss, "byte " + std::to_string(at));
  }
  for (size_t at = bytes_.size() - 8; at < bytes_.size(); ++at) {
    std::string bytes = bytes_;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x40);
    Write(bytes);
    ExpectRefused(*engine_, StatusCode::kDataLoss, "byte " + std::to_string(at));
  }
}

TEST_F(SnapshotFile, OtherVersionsAndOtherModelsAreRefused) {
  for (const char form : {2, 4}) {
    std::string other = bytes_;
    other[8] = form;
    Write(other);
    ExpectRefused(*engine_, StatusCode::kUnsupported, form < 3 ? "an older form" : "a newer form");
  }
  // With any fingerprint, the message is one line.
  std::string odd = bytes_;
  odd[80 + 3] = '\n';
  int64_t sizes[3];  // tokens, fingerprint, note
  std::memcpy(sizes, odd.data() + 16, sizeof(sizes));
  const auto end = static_cast<size_t>(80 + 4 * sizes[0] + sizes[1] + sizes[2]);
  const auto sum = static_cast<uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(odd.data()), static_cast<uInt>(end)));
  std::memcpy(odd.data() + end, &sum, sizeof(sum));
  Write(odd);
  ExpectRefused(*engine_, StatusCode::kUnsupported, "a line break in the fingerprint");
  Write(bytes_);
  const auto refused_by = [&](auto change, const std::string& what) {
    EngineOptions options = options_;
    change(options);
    const auto engine = LoadOrFail(options);
    ASSERT_NE(engine, nullptr);
    ExpectRefused(*engine, StatusCode::kUnsupported, what);
    EXPECT_EQ(engine->ReadSnapshotInfo(path_).status().code(), StatusCode::kUnsupported);
  };
  refused_by([](EngineOptions& o) { o.kv_dtype = KvDtype::kBf16; }, "KV dtype");
  refused_by([](EngineOptions& o) { o.index_dtype = IndexDtype::kBf16; }, "index dtype");
  refused_by([](EngineOptions& o) { o.activation_dtype = ActivationDtype::kFp8; }, "activation dtype");
  refused_by([](EngineOptions& o) { o.reference_ops = true; }, "reference ops");
  const auto synthetic = [](uint64_t seed) {
    return [seed](EngineOptions& o) { o.model_dir.clear(), o.synthetic.shape = "nano", o.synthetic.seed = seed; };
  };
  refused_by(synthetic(1), "another model");
  // Different weights alone are a difference.
  EngineOptions one = options_, two = options_;
  synthetic(1)(one);
  synthetic(2)(two);
  const auto first = LoadOrFail(one), second = LoadOrFail(two);
  auto session = std::move(first->NewSession()).value();
  ASSERT_TRUE(session->Append(std::span(ids_).first(5), LogitRows::kNone, nullptr).ok());
  ASSERT_TRUE((*session->Snapshot())->Save(path_).ok());
  EXPECT_TRUE(first->LoadSnapshot(path_).ok());
  ExpectRefused(*second, StatusCode::kUnsupported, "other weights");
  // A lower context limit.
  Write(bytes_);
  EngineOptions small = options_;
  small.max_context = 100;
  ExpectRefused(*LoadOrFail(small), StatusCode::kResourceExhausted, "context");
}

}  // namespace
}  // namespace dsv4::test
