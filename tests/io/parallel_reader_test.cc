// Parts of files, with any begin and end, through every kind of read that the file system has.
#include "io/parallel_reader.h"

#include <cstdlib>
#include <cstring>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/random.h"
#include "io/test_files.h"
#include "support/count_allocations.h"
#include "support/thread_limit.h"

namespace dsv4 {
namespace {

using test::TempDir;
using test::WriteBytes;

std::string RandomBytes(size_t n, uint64_t seed) {
  std::string bytes(n, '\0');
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(RandomBits(seed, i));
  return bytes;
}

struct Free {
  void operator()(uint8_t* p) const { std::free(p); }
};
using Slot = std::unique_ptr<uint8_t, Free>;
Slot MakeSlot(int64_t bytes) {
  Slot slot(static_cast<uint8_t*>(std::aligned_alloc(ParallelReader::kBlock, static_cast<size_t>(bytes))));
  std::memset(slot.get(), 0xEE, static_cast<size_t>(bytes));
  return slot;
}

class ParallelReaderTest : public ::testing::Test {
 protected:
  // A file of odd length that is larger than one request.
  std::shared_ptr<const MappedFile> Make(const std::string& name, const std::string& bytes) {
    WriteBytes(temp_ / name, bytes);
    return std::move(MappedFile::Open(temp_ / name)).value();
  }
  TempDir temp_;
};

TEST_F(ParallelReaderTest, ReadsEveryPartOfEveryFile) {
  const std::string a = RandomBytes((5 << 20) + 4097, 1), b = RandomBytes(12345, 2);
  ParallelReader reader({Make("a", a), Make("b", b)}, 4);
  struct Case {
    FilePart part;
    Slot slot;
  };
  std::vector<Case> cases;
  const auto size = static_cast<int64_t>(a.size());
  for (const FilePart part : {FilePart{0, 0, size}, FilePart{0, 1, 1}, FilePart{0, 4096, 4096}, FilePart{0, 4095, 4098},
                              FilePart{0, size - 1, 1}, FilePart{0, size - 4097, 4097}, FilePart{0, 3, (3 << 20) + 11},
                              FilePart{1, 0, 12345}, FilePart{1, 12000, 345}}) {
    cases.push_back({part, MakeSlot(ParallelReader::SlotBytes(part))});
  }
  for (size_t i = 0; i < cases.size(); ++i)
    reader.Read(static_cast<int64_t>(i) / 2, cases[i].part, cases[i].slot.get());
  for (size_t i = 0; i < cases.size(); ++i) {
    ASSERT_TRUE(reader.Wait(static_cast<int64_t>(i) / 2).ok());
    const auto& [part, slot] = cases[i];
    const std::string& file = part.file == 0 ? a : b;
    EXPECT_EQ(std::memcmp(slot.get() + ParallelReader::PadBytes(part), file.data() + part.offset,
                          static_cast<size_t>(part.bytes)),
              0)
        << i;
  }
  EXPECT_EQ(reader.file_bytes(), [&] {
    int64_t bytes = 0;
    for (const Case& c : cases) bytes += c.part.bytes;
    return bytes;
  }());
}

TEST_F(ParallelReaderTest, RatesAreOfFilesOfAnySize) {
  EXPECT_EQ(ReadRateOf({}), 0);
  EXPECT_GT(ReadRateOf({Make("a", "x")}), 0);
  EXPECT_GT(ReadRateOf({Make("b", RandomBytes((5 << 20) + 4097, 1)), Make("c", "yz"), Make("d", "z")}), 0);
  const auto gone = Make("e", RandomBytes(3 << 20, 2));
  ASSERT_EQ(::truncate(gone->path().c_str(), 1 << 20), 0);
  EXPECT_EQ(ReadRateOf({gone}), 0);
}

TEST_F(ParallelReaderTest, WhatThePageCacheHoldsComesFromThere) {
  const std::string bytes = RandomBytes(1 << 20, 3);  // just written, so every page is cached
  ParallelReader reader({Make("a", bytes)}, 2);
  const FilePart part{0, 0, 1 << 20};
  const Slot slot = MakeSlot(ParallelReader::SlotBytes(part));
  reader.Read(0, part, slot.get());
  ASSERT_TRUE(reader.Wait(0).ok());
  EXPECT_EQ(reader.cached_bytes(), 1 << 20);
  EXPECT_FALSE(reader.direct());
}

TEST_F(ParallelReaderTest, FindsWhereAPointerLeads) {
  const auto a = Make("a", "0123456789"), b = Make("b", "abc");
  ParallelReader reader({a, b}, 1);
  FilePart part;
  ASSERT_TRUE(reader.Locate(b->data() + 2, &part));
  EXPECT_EQ(part.file, 1);
  EXPECT_EQ(part.offset, 2);
  const uint8_t outside = 0;
  EXPECT_FALSE(reader.Locate(&outside, &part));
}

TEST_F(ParallelReaderTest, CopiesAreOrderedWithReads) {
  ParallelReader reader({}, 3);
  const std::string from = RandomBytes((5 << 20) + 3, 4);
  std::string to(from.size(), '\0');
  reader.Copy(7, reinterpret_cast<uint8_t*>(to.data()), reinterpret_cast<const uint8_t*>(from.data()),
              static_cast<int64_t>(from.size()));
  ASSERT_TRUE(reader.Wait(7).ok());
  EXPECT_TRUE(to == from);
}

TEST_F(ParallelReaderTest, AFileThatBecameShorterIsAnErrorWithItsName) {
  const auto map = Make("short", RandomBytes(1 << 16, 5));
  ParallelReader reader({map}, 2);
  ASSERT_EQ(::truncate((temp_ / "short").c_str(), 5000), 0);
  const FilePart part{0, 0, 1 << 16};
  const Slot slot = MakeSlot(ParallelReader::SlotBytes(part));
  reader.Read(0, part, slot.get());
  const Status status = reader.Wait(0);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("short"));
}

TEST_F(ParallelReaderTest, ThreadsWithoutMemoryForTheErrorSayThat) {
  const auto map = Make("short", RandomBytes(1 << 16, 5));
  test::new_threads_allocations = 0;
  ParallelReader reader({map}, 1);
  const FilePart part{0, 0, 1 << 16};
  const Slot slot = MakeSlot(ParallelReader::SlotBytes(part));
  reader.Read(0, part, slot.get());
  EXPECT_EQ(reader.Wait(0).code(), StatusCode::kResourceExhausted);
  test::new_threads_allocations = -1;
}

TEST_F(ParallelReaderTest, StoppingLeavesMemoryAlone) {
  const std::string bytes = RandomBytes(32 << 20, 6);
  const FilePart part{0, 0, 32 << 20};
  const Slot slot = MakeSlot(ParallelReader::SlotBytes(part));
  ParallelReader reader({Make("a", bytes)}, 2);
  reader.Read(0, part, slot.get());
  reader.Stop();
  std::memset(slot.get(), 0, 32 << 20);
  EXPECT_EQ(slot.get()[(32 << 20) - 1], 0);
}

TEST(ParallelReaderThreads, ThoseThatCannotBeStartedAreAnErrorAndTheOthersEnd) {
  DSV4_EXPECT_THREADS_RUN_OUT(ParallelReader({}, 200));
}

}  // namespace
}  // namespace dsv4
