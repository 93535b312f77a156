// The real V4 tokenizer: vectors computed with PyPI tokenizers on the published file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "dsv4/tokenizer.h"
#include "text/support.h"

namespace dsv4 {
namespace {

using test::V4;

struct Vector {
  std::string text;
  std::vector<TokenId> ids;
};

const std::vector<Vector>& Vectors() {
  static const std::vector<Vector> vectors = {
      {"  7", {262, 25}},
      {"a  7", {67, 262, 25}},
      {"\n7", {201, 25}},
      {" \n 7", {539, 223, 25}},
      {"7  ", {25, 262}},
      {"12345678", {6895, 18009, 2597}},
      {"1,234.5", {19, 14, 14456, 16, 23}},
      {"٣٤٥٦", {127056, 152, 100, 152, 101, 152, 102}},
      {"①②③④", {104894, 21686, 28650}},
      {"½x", {23951, 90}},
      {"x²y", {90, 1628, 91}},
      {"ア・イ", {10194, 4825, 7909}},
      {"カー", {112249}},
      {"あ゛", {5947, 665, 252}},
      {"ab中", {425, 525}},
      {"  中", {262, 525}},
      {"中  x", {525, 223, 1527}},
      {"中\n\n文", {525, 271, 978}},
      {"㐀一", {162, 241, 225, 378}},
      {"龥龦", {2715, 101, 2715, 102}},
      {"~ ", {96, 223}},
      {"~~~\n", {30125}},
      {"a ~b", {67, 6883, 68}},
      {"~/x", {71520, 90}},
      {" ~/x", {6883, 17, 90}},
      {"»«", {3807, 12389}},
      {"—dash", {965, 70, 1844}},
      {"€5", {19659, 23}},
      {"don't", {20385, 1664}},
      {"''s", {10329, 85}},
      {"a_b", {67, 9181}},
      {"#!/bin", {35729, 13314}},
      {"\t \tb", {35749, 37496}},
      {"a   b", {67, 262, 291}},
      {"a   .", {67, 262, 1204}},
      {"a   ", {67, 361}},
      {"a\n \nb", {67, 77968, 68}},
      {"\r\r\n", {204, 204, 201}},
      {" \u00a0x", {223, 2162, 90}},
      {"\u3000x", {18524, 90}},
      {"x\u2028y", {90, 300, 104, 91}},
      {"\u0085x", {129, 230, 90}},
      {std::string("\0\0", 2), {191, 191}},
      {"a\u200b b", {67, 35020, 291}},
      {"\ufeff1", {15251, 19}},
      {"e\u0301\u0302", {71, 17793, 75274}},
      {"1\u0301", {19, 17793}},
      {"🙂🙂", {80300, 227, 80300, 227}},
      {" 🙂", {68139}},
      {"<｜User｜", {30, 28217, 6756, 28217}},
      {"<think", {30, 37947}},
      {"</think>>", {128822, 32}},
      {"a<｜/table>｜b", {67, 129265, 68}},
      {"<dsml:x", {128840, 90}},
      {"</｜DSML｜parameter>\n", {1718, 128825, 41523, 1018}},
      {"<｜DSML｜ parameter", {30, 128825, 10767}},
      {" <think>", {223, 128821}},
      {"<think>\n\n", {128821, 271}},
      {"<｜System｜>", {30, 28217, 8375, 28217, 32}},
      {"<｜deepseek_image｜>", {30, 28217, 60861, 121559, 41629, 28217, 32}},
  };
  return vectors;
}

TEST(TokenizerV4, Vectors) {
  SKIP_WITHOUT_V4();
  for (const Vector& v : Vectors()) {
    EXPECT_EQ(V4().Encode(v.text), v.ids) << test::Quote(v.text);
    EXPECT_EQ(*V4().Decode(v.ids), v.text);
    StreamDecoder decoder(V4());
    std::string streamed;
    for (const TokenId id : v.ids) {
      const std::string part = *decoder.Push(id);
      EXPECT_EQ(*V4().Decode(V4().Encode(part)), part) << "not whole characters";
      streamed += part;
    }
    EXPECT_EQ(streamed + decoder.Finish(), v.text);
  }
}

TEST(TokenizerV4, Layout) {
  SKIP_WITHOUT_V4();
  EXPECT_EQ(V4().vocab_size(), 129280);
  EXPECT_EQ(V4().bos_token_id(), 0);
  EXPECT_EQ(V4().eos_token_id(), 1);
  EXPECT_EQ(V4().FindToken("<｜end▁of▁sentence｜>"), 1);
  EXPECT_EQ(V4().FindToken("<think>"), 128821);
  EXPECT_EQ(V4().FindToken("｜DSML｜"), 128825);
  EXPECT_EQ(V4().FindToken("<｜image｜>"), 129279);
  EXPECT_EQ(V4().FindToken(" "), 223);
  EXPECT_EQ(V4().FindToken("<｜System｜>"), std::nullopt);
  EXPECT_EQ(V4().TokenBytes(3), "!");
  EXPECT_EQ(V4().TokenBytes(190), "\xFF");
  EXPECT_EQ(V4().TokenBytes(191), std::string(1, '\0'));
  EXPECT_EQ(V4().TokenBytes(225), "\x80");
  int special = 0, added = 0;
  for (TokenId id = 0; id < V4().vocab_size(); ++id) {
    special += V4().IsSpecial(id);
    added += V4().IsAdded(id);
  }
  EXPECT_EQ(special, 1230);
  EXPECT_EQ(added, 1283);
}

TEST(TokenizerV4, SpecialTokensAreHiddenOnlyWhereFlagged) {
  SKIP_WITHOUT_V4();
  const std::string text = "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜><think>｜DSML｜<｜end▁of▁sentence｜>";
  const std::vector<TokenId> ids = V4().Encode(text);
  EXPECT_EQ(ids, (std::vector<TokenId>{0, 128803, 83, 128804, 128821, 128825, 1}));
  EXPECT_EQ(*V4().Decode(ids), text);
  EXPECT_EQ(*V4().Decode(ids, {.skip_special = true}), "<｜User｜>q<｜Assistant｜><think>｜DSML｜");
}

TEST(TokenizerV4, AddedTokensCanBePlainText) {
  SKIP_WITHOUT_V4();
  const std::vector<TokenId> ids = V4().Encode("<｜User｜>", {.recognize_added_tokens = false});
  EXPECT_EQ(ids, (std::vector<TokenId>{30, 28217, 6756, 28217, 32}));
}

// A quadratic encoder would need hours for each of these.
TEST(TokenizerV4, LongPiecesEncodeInSeconds) {
  SKIP_WITHOUT_V4();
  const std::clock_t begin = std::clock();  // time of this process: a busy machine may give it little
  EXPECT_EQ(V4().Encode(std::string(1'000'000, 'a')).size(), 125000u);
  EXPECT_EQ(*V4().Decode(V4().Encode(std::string(1'000'000, ' '))), std::string(1'000'000, ' '));
  EXPECT_LT((std::clock() - begin) / CLOCKS_PER_SEC, 60);
}

}  // namespace
}  // namespace dsv4
