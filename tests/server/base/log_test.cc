#include "server/base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>

#include "gtest/gtest.h"

namespace dsv4::server {

namespace {

class LogTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::pipe2(ends_.data(), O_CLOEXEC), 0); }
  void TearDown() override {
    for (const int fd : ends_) ::close(fd);
  }
  std::string ReadAll() {
    ::fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    std::string text;
    char buffer[4096];
    for (ssize_t n; (n = ::read(ends_[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
    return text;
  }

  std::array<int, 2> ends_{};
};

TEST_F(LogTest, LinesArriveInOrder) {
  {
    const Log log(/*json=*/false, ends_[1]);
    log.Line("first", {{"name", "plain"}, {"none", ""}, {"text", "with space"}});
    log.Line("second", {});
  }
  const std::string text = ReadAll();
  EXPECT_NE(text.find("Z first name=plain text=\"with space\"\n"), std::string::npos) << text;
  EXPECT_LT(text.find("first"), text.find("second"));
}

TEST_F(LogTest, JsonHasALevelAndNumbers) {
  {
    const Log log(/*json=*/true, ends_[1]);
    log.Line(
        LogLevel::kError, "request",
        {{"status", 200}, {"ms", 1.5}, {"complete", true}, {"none", ""}, {"size", LogBytes{3 << 20}}, {"name", "x"}});
  }
  const std::string text = ReadAll();
  EXPECT_NE(text.find(R"("level":"error","event":"request","status":200,"ms":1.5,"complete":true,"size":3145728,)"
                      R"("name":"x"})"),
            std::string::npos)
      << text;
}

TEST_F(LogTest, TextHasTheSameForPeople) {
  {
    const Log log(/*json=*/false, ends_[1]);
    log.Line("request",
             {{"status", 200}, {"ms", Rounded(1.24999, 2)}, {"complete", false}, {"size", LogBytes{3 << 19}}});
  }
  EXPECT_NE(ReadAll().find("Z request status=200 ms=1.25 complete=false size=1.5MiB\n"), std::string::npos);
}

TEST_F(LogTest, NothingThatATerminalObeysComesOut) {
  for (const bool json : {false, true}) {
    {
      const Log log(json, ends_[1]);
      log.Line("request", {{"path", "/\x1b[2J"},
                           {"c1",
                            "\xc2\x9b"
                            "31m"},
                           {"raw", "\x9b"},
                           {"del", "\x7f"},
                           {"line", "a\nb"}});
    }
    std::string text = ReadAll();
    ASSERT_EQ(text.back(), '\n');
    text.pop_back();
    for (const char c : text) EXPECT_TRUE(c >= ' ' && c < 0x7f) << static_cast<int>(c);
  }
}

TEST_F(LogTest, AReaderThatDoesNotReadStopsNobodyAndIsToldWhatItMissed) {
  const auto begin = std::chrono::steady_clock::now();
  {
    const Log log(/*json=*/false, ends_[1]);
    const std::string field(1000, 'x');
    for (int i = 0; i < 10000; ++i) log.Line("request", {{"field", field}});
    EXPECT_GT(log.num_dropped(), 5000u);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60)) << "it waits";

  const Log log(/*json=*/false, ends_[1]);
  ReadAll();
  const std::string field(1000, 'x');
  for (int i = 0; i < 10000; ++i) log.Line("request", {{"field", field}});
  std::string text;
  for (int i = 0; i < 1000 && text.find(" log dropped=") == std::string::npos; ++i) {
    text += ReadAll();
    ::usleep(5000);
    log.Line("more", {});
  }
  EXPECT_NE(text.find(" log dropped="), std::string::npos);
}

}  // namespace

}  // namespace dsv4::server
