#include "io/etcd_lease.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/text.h"
#include "io/loop.h"

namespace holdfast::io {
namespace {

using namespace std::chrono_literals;

constexpr Duration kGrantLimit = 2s;
constexpr Duration kRevokeLimit = 500ms;

}  // namespace

class EtcdLease::Keeper {
 public:
  // `until`: the lease lives at least so long.
  Keeper(Etcd etcd, EtcdLeaseGrant lease, Instant until,
         std::function<void(const std::string&)> lost)
      : etcd_(std::move(etcd)), lease_(lease), until_(until), on_lost_(std::move(lost)) {
    thread_ = std::thread([this] { run(); });
  }
  ~Keeper() { stop(); }
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  void give_up() {
    if (stop()) (void)etcd_.revoke(lease_.id, Loop::now() + kRevokeLimit);
  }

 private:
  // False: it was stopped before.
  bool stop() {
    {
      const std::lock_guard held(mutex_);
      stops_ = true;
    }
    wake_.notify_one();
    if (!thread_.joinable()) return false;
    thread_.join();
    return true;
  }

  // Waits for `time`, or until stop() is called: then true.
  bool pause(Duration time) {
    std::unique_lock held(mutex_);
    return wake_.wait_for(held, time, [this] { return stops_; });
  }

  // Counts the lease's time from before etcd is asked: etcd counts from a later moment.
  void run() {
    const Duration between = lease_.ttl / 4;
    std::string why = "etcd did not answer in time";
    while (!pause(between)) {
      const Instant asked = Loop::now();
      if (asked >= until_) break;
      const auto lives = etcd_.keep_alive(lease_.id, std::min(until_, asked + lease_.ttl / 2));
      if (lives && !*lives) {
        why = "etcd has ended it";
        break;
      }
      if (lives) until_ = asked + std::min(**lives, lease_.ttl);
      if (!lives) why = lives.error().what;
      if (Loop::now() >= until_) break;
    }
    {
      const std::lock_guard held(mutex_);
      if (stops_) return;
    }
    on_lost_(why);
  }

  Etcd etcd_;
  const EtcdLeaseGrant lease_;
  Instant until_;
  const std::function<void(const std::string&)> on_lost_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stops_ = false;
  std::thread thread_;
};

EtcdLease::EtcdLease(std::int64_t id, std::unique_ptr<Keeper> keeper)
    : id_(id), keeper_(std::move(keeper)) {}
EtcdLease::~EtcdLease() = default;

void EtcdLease::give_up() {
  keeper_->give_up();
}

Result<std::unique_ptr<EtcdLease>> EtcdLease::take(
    const EtcdOptions& options, std::chrono::seconds ttl,
    std::function<void(const std::string&)> on_lost) {
  auto etcd = Etcd::open(options);
  if (!etcd) return etcd.error();
  const Instant asked = Loop::now();
  const auto granted = etcd->grant(ttl, asked + kGrantLimit);
  if (!granted) return granted.error();
  auto keeper = std::make_unique<Keeper>(*std::move(etcd), *granted, asked + granted->ttl,
                                         std::move(on_lost));
  return std::unique_ptr<EtcdLease>(new EtcdLease(granted->id, std::move(keeper)));
}

}  // namespace holdfast::io
