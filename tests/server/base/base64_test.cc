#include "server/base/base64.h"

#include <string>

#include "gtest/gtest.h"

namespace dsv4::server {

namespace {

// RFC 4648, section 10.
TEST(Base64, EncodesAsTheStandardSays) {
  EXPECT_EQ(EncodeBase64(""), "");
  EXPECT_EQ(EncodeBase64("f"), "Zg==");
  EXPECT_EQ(EncodeBase64("fo"), "Zm8=");
  EXPECT_EQ(EncodeBase64("foo"), "Zm9v");
  EXPECT_EQ(EncodeBase64("foobar"), "Zm9vYmFy");
}

TEST(Base64, DecodesWhatItEncodes) {
  std::string bytes;
  for (int i = 0; i < 600; ++i) {
    EXPECT_EQ(DecodeBase64(EncodeBase64(bytes)), bytes) << i;
    bytes += static_cast<char>(i * 7 + i / 256);
  }
}

}  // namespace

}  // namespace dsv4::server
