// Signals that end the server.
#include <sys/resource.h>

#include "server/http/http_fixture.h"

namespace dsv4::server {
namespace {

// A server that could not be ended by SIGTERM does not start.
TEST_F(Http, WithoutDescriptorsForSignalsThereIsAnError) {
  Start();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status status = server_->OnSignal([](int) {});
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("ulimit -n"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace dsv4::server
