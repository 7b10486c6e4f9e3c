// EtcdLease: a lease in etcd that lives as long as this process does its work.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "io/etcd.h"

namespace holdfast::io {

class EtcdLease {
 public:
  // A thread of its own keeps it alive, so it does not depend on what this process waits for. Once
  // it may be over, `on_lost` is called, from that thread and once: with why. Nothing of etcd is to
  // be changed from then on.
  static Result<std::unique_ptr<EtcdLease>> take(const EtcdOptions& options,
                                                 std::chrono::seconds ttl,
                                                 std::function<void(const std::string&)> on_lost);
  EtcdLease(const EtcdLease&) = delete;
  EtcdLease& operator=(const EtcdLease&) = delete;
  ~EtcdLease();  // Lets it run out, unless give_up() was called.

  [[nodiscard]] std::int64_t id() const { return id_; }
  // What is bound to it is gone at once, if etcd answers.
  void give_up();

 private:
  class Keeper;
  EtcdLease(std::int64_t id, std::unique_ptr<Keeper> keeper);

  std::int64_t id_;
  std::unique_ptr<Keeper> keeper_;
};

}  // namespace holdfast::io
