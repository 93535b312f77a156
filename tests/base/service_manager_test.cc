#include "dsv4/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dsv4 {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The manager's end of the socket.
class Manager {
 public:
  // `name`: as in NOTIFY_SOCKET.
  explicit Manager(const std::string& name) : name_(name), fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0)) {
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    std::memcpy(at.sun_path, name.data(), name.size());
    if (name[0] == '@') at.sun_path[0] = '\0';
    const size_t length = offsetof(sockaddr_un, sun_path) + name.size() + (name[0] == '@' ? 0 : 1);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&at), static_cast<socklen_t>(length)), 0) << name;
  }
  ~Manager() {
    ::close(fd_);
    if (name_[0] == '/') ::unlink(name_.c_str());
  }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  // "": no message waits.
  std::string Next() const {
    char text[1024];
    const ssize_t size = ::recv(fd_, text, sizeof(text), 0);
    return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
  }

 private:
  std::string name_;
  int fd_;
};

std::string UniqueName(const std::string& what) {
  return (std::filesystem::temp_directory_path() / (what + std::to_string(::getpid()))).string();
}

class ServiceManagerAt : public testing::TestWithParam<bool> {
 protected:
  std::string Name() const {
    const std::string path = UniqueName("dsv4-notify");
    return GetParam() ? "@" + path : path;
  }
};

TEST_P(ServiceManagerAt, GetsOneDatagramPerState) {
  const Manager manager(Name());
  auto service = ServiceManager::At(Name(), std::chrono::seconds(30));
  ASSERT_TRUE(service.ok()) << service.status().message();
  service->Ready("serving\nREADY=0");
  service->Alive();
  service->Stopping(std::chrono::seconds(120), "finishing");
  EXPECT_EQ(manager.Next(), "READY=1\nSTATUS=serving READY=0\n");
  EXPECT_EQ(manager.Next(), "WATCHDOG=1\n");
  EXPECT_EQ(manager.Next(), "STOPPING=1\nSTATUS=finishing\nEXTEND_TIMEOUT_USEC=120000000\n");
  EXPECT_EQ(manager.Next(), "");
  EXPECT_EQ(service->alive_interval(), std::chrono::seconds(15));
}

TEST_P(ServiceManagerAt, LoadingIsToldAtTheBeginningAndTheEnd) {
  const Manager manager(Name());
  auto service = ServiceManager::At(Name(), std::chrono::seconds(0));
  ASSERT_TRUE(service.ok());
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t i = 0; i <= 1000; ++i) service->Loading(i * 1000000, 1000000000);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
  EXPECT_EQ(manager.Next(), "STATUS=loading: 0.00 of 1.00 GB\nEXTEND_TIMEOUT_USEC=300000000\n");
  std::string last;
  int64_t more = 0;
  for (std::string next = manager.Next(); !next.empty(); next = manager.Next(), ++more) last = next;
  EXPECT_THAT(last, StartsWith("STATUS=loading: 1.00 of 1.00 GB\n"));
  EXPECT_LE(more, seconds.count() + 1);
  EXPECT_EQ(service->alive_interval().count(), 0);
}

INSTANTIATE_TEST_SUITE_P(, ServiceManagerAt, testing::Bool(),
                         [](const auto& param) { return param.param ? "abstract" : "path"; });

TEST(ServiceManager, AManagerThatIsGoneOrDoesNotReadStopsNobody) {
  const std::string name = "@" + UniqueName("dsv4-silent");
  auto service = ServiceManager::At(name, std::chrono::seconds(0));
  ASSERT_TRUE(service.ok());
  service->Ready("nobody listens");
  const Manager manager(name);
  // The kernel keeps a number of datagrams (net.unix.max_dgram_qlen), and a number of bytes per sender.
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path + 1, name.data() + 1, name.size() - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  for (int sent = 1; sent > 0;) {
    const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    for (sent = 0; ::sendto(fd, "x", 1, 0, reinterpret_cast<const sockaddr*>(&to), length) == 1;) ++sent;
    ::close(fd);
  }
  service->Alive();
  EXPECT_EQ(manager.Next(), "x");
  service->Alive();
  std::string last;
  for (std::string next = manager.Next(); !next.empty(); next = manager.Next()) last = next;
  EXPECT_EQ(last, "WATCHDOG=1\n");
}

TEST(ServiceManager, AddressesThatCannotBeUsedAreErrors) {
  for (const std::string& name : {std::string(), std::string("/"), std::string("@"), std::string("notify"),
                                  std::string("vsock:2:1"), "/" + std::string(200, 'n')}) {
    const auto service = ServiceManager::At(name, std::chrono::seconds(0));
    ASSERT_FALSE(service.ok()) << name;
    EXPECT_THAT(service.status().message(), HasSubstr("NOTIFY_SOCKET is '" + name + "'"));
  }
}

class ServiceManagerEnvironment : public testing::Test {
 protected:
  void SetUp() override { Clear(); }
  void TearDown() override { Clear(); }
  static void Clear() {
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) ::unsetenv(name);
  }
  static void Set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }
};

TEST_F(ServiceManagerEnvironment, NamesTheSocketAndTheWatchdogOfThisProcess) {
  auto service = ServiceManager::FromEnvironment();
  ASSERT_TRUE(service.ok());
  EXPECT_FALSE(service->has_value());

  const std::string name = "@" + UniqueName("dsv4-env");
  const Manager manager(name);
  Set("NOTIFY_SOCKET", name);
  Set("WATCHDOG_USEC", "3000000");
  service = ServiceManager::FromEnvironment();
  ASSERT_TRUE(service.ok() && service->has_value());
  EXPECT_EQ((*service)->alive_interval(), std::chrono::milliseconds(1500));
  (*service)->Alive();
  EXPECT_EQ(manager.Next(), "WATCHDOG=1\n");

  Set("WATCHDOG_PID", std::to_string(::getpid()));
  EXPECT_EQ((*ServiceManager::FromEnvironment())->alive_interval(), std::chrono::milliseconds(1500));
  Set("WATCHDOG_PID", std::to_string(::getppid()));
  EXPECT_EQ((*ServiceManager::FromEnvironment())->alive_interval().count(), 0);
}

TEST_F(ServiceManagerEnvironment, WrongValuesAreErrors) {
  Set("NOTIFY_SOCKET", "relative");
  EXPECT_FALSE(ServiceManager::FromEnvironment().ok());
  Set("NOTIFY_SOCKET", "/run/notify");
  for (const char* value : {"soon", "-1", "3s"}) {
    Set("WATCHDOG_USEC", value);
    const auto service = ServiceManager::FromEnvironment();
    ASSERT_FALSE(service.ok()) << value;
    EXPECT_THAT(service.status().message(), EndsWith("accepted: a number of microseconds"));
  }
}

}  // namespace
}  // namespace dsv4
