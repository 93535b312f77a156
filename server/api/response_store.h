// Stores responses that clients can refer to (previous_response_id): the reply, and the conversation up to its end. It
// keeps the most recently used ones in memory and, if there is a folder, in files that remain after the server stops.
// Both have a limit.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "dsv4/status.h"
#include "server/base/kept_folder.h"

namespace dsv4::server {

struct StoredResponse {
  std::string tenant;    // the tenant that owns it (keys.h)
  std::string response;  // JSON, as it was sent
  std::string items;     // JSON array of the conversation's items, including the response's
};

// Any thread may call it.
class ResponseStore {
 public:
  // `max_bytes`: limit for memory, and the same for `folder`. Not set: memory only.
  ResponseStore(size_t max_bytes, std::optional<KeptFolder> folder);
  ~ResponseStore();  // writes what is queued

  void Put(const std::string& id, StoredResponse response);
  // Returns null if the tenant has no such response. May read a file.
  std::shared_ptr<const StoredResponse> Get(const std::string& tenant, const std::string& id);
  // Returns when the response is gone from memory and from the disk: it does not come back, whatever ends the server.
  // Errors: kNotFound (the tenant has no such response), kInternal (it cannot be removed from the disk).
  Status Remove(const std::string& tenant, const std::string& id);

 private:
  using Ptr = std::shared_ptr<const StoredResponse>;
  // Most recently used ids first.
  struct Shelf {
    struct Place {
      size_t bytes;
      std::list<std::string>::iterator at;
      Ptr response;  // null if it is not in memory
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
  void DropWrites(const std::string& id);

  const size_t max_bytes_;
  const std::optional<KeptFolder> folder_;
  std::mutex mutex_;  // guards all members below
  std::condition_variable wake_, done_;
  Shelf memory_, disk_;
  std::deque<std::pair<std::string, Ptr>> tasks_;  // to write; null: to remove
  const std::string* current_ = nullptr;           // the id whose task is being carried out
  size_t queued_bytes_ = 0;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dsv4::server
