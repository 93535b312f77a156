#include "server/announce.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>

#include "gtest/gtest.h"
#include "server/nano_tokenizer.h"

namespace dsv4::server {
namespace {

// Returns the log lines of a model with `vocab_size` ids that is served with nano's tokenizer.
std::string AnnouncedWith(int64_t vocab_size) {
  auto http = HttpServer::Listen(
      {.host = "127.0.0.1"}, [](const HttpRequest&) { return HttpVerdict(); }, [](const ExchangePtr&) {},
      [](const HttpRequest&, const HttpDone&) {});
  if (!http.ok()) return http.status().message();
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return "no pipe";
  {
    const Log log(/*json=*/false, ends[1]);
    ModelInfo model;
    model.vocab_size = vocab_size;
    Announce(log, ServerOptions(), model, NanoTokenizer(), **http);
  }
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
  for (const int fd : ends) ::close(fd);
  return text;
}

TEST(Announce, IdsBeyondTheTokenizersAreAWarning) {
  const int64_t known = NanoTokenizer().vocab_size();
  const std::string warned = AnnouncedWith(known + 1);
  EXPECT_NE(warned.find("ids above that have no text"), std::string::npos) << warned;
  EXPECT_NE(warned.find(std::to_string(known + 1)), std::string::npos) << warned;
  const std::string silent = AnnouncedWith(known);
  EXPECT_EQ(silent.find("have no text"), std::string::npos) << silent;
  EXPECT_NE(silent.find("listening"), std::string::npos) << silent;
}

}  // namespace
}  // namespace dsv4::server
