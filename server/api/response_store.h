// Responses that clients come back to (previous_response_id): the reply, and the conversation up to its end. The ones
// used last stay, in memory and, where there is a folder, in files that outlive the server; both within a limit.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace dsv4::server {

struct StoredResponse {
  std::string tenant;    // whose it is (keys.h)
  std::string response;  // JSON, as it was sent
  std::string items;     // JSON array of the conversation's items, the response's included
};

// Any thread.
class ResponseStore {
 public:
  // `max_bytes`: in memory, and again in `folder`, which is made where it is missing; "": memory only.
  ResponseStore(size_t max_bytes, std::string folder);
  ~ResponseStore();  // writes what waits

  void Put(const std::string& id, StoredResponse response);
  // Null: there is none of this tenant. May read a file.
  std::shared_ptr<const StoredResponse> Get(const std::string& tenant, const std::string& id);
  bool Remove(const std::string& tenant, const std::string& id);

 private:
  using Ptr = std::shared_ptr<const StoredResponse>;
  // The ids used last come first.
  struct Shelf {
    struct Place {
      size_t bytes;
      std::list<std::string>::iterator at;
      Ptr response;  // in memory
    };
    std::list<std::string> ids;
    std::map<std::string, Place> places;
    size_t bytes = 0;

    void Add(const std::string& id, size_t size, Ptr response);
    void Drop(const std::string& id);
    bool Use(const std::string& id);
  };

  void AddToMemory(const std::string& id, Ptr response);
  void FitDisk();
  void ReadFolder();
  Ptr ReadFile(const std::string& id) const;
  void Run();
  std::string PathOf(const std::string& id) const;

  const size_t max_bytes_;
  const std::string folder_;
  std::mutex mutex_;
  std::condition_variable wake_;
  Shelf memory_, disk_;
  std::deque<std::pair<std::string, Ptr>> tasks_;  // to write; null: to remove
  size_t queued_bytes_ = 0;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dsv4::server
