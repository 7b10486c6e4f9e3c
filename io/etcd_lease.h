// EtcdLease: a lease in etcd that lives as long as this process does its work.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "io/etcd.h"

namespace holdfast::io {

class EtcdLease {
 public:
  // Takes a lease. A thread of its own keeps it alive, so it does not depend on what this process
  // waits for. Once the lease may be over, that thread calls `on_lost`, once, with the reason. From
  // then on this process must change nothing in etcd.
  static Result<std::unique_ptr<EtcdLease>> take(const EtcdOptions& options,
                                                 std::chrono::seconds ttl,
                                                 std::function<void(const std::string&)> on_lost);
  EtcdLease(const EtcdLease&) = delete;
  EtcdLease& operator=(const EtcdLease&) = delete;
  ~EtcdLease();  // Lets the lease run out, unless give_up() was called.

  [[nodiscard]] std::int64_t id() const { return id_; }
  // Ends the lease. The keys that are bound to it are gone at once, if etcd answers.
  void give_up();

 private:
  class Keeper;
  EtcdLease(std::int64_t id, std::unique_ptr<Keeper> keeper);

  std::int64_t id_;
  std::unique_ptr<Keeper> keeper_;
};

}  // namespace holdfast::io
